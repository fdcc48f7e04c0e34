"""The tool ``python``: a stateful interpreter in the episode's sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k2jax.env.toolsets.types import Workplace, declared, parameters_of
from k2jax.errors import UserError
from k2jax.sandbox.interpreter import host_python
from k2jax.sandbox.worker import ToolAnswer, ToolWorker

SOURCE = "python_source"
"""Key of a task's metadata: Python source that the interpreter runs before its first cell."""
_CELL = '  File "<code>"'


class PythonTool:
    """Runs cells of Python one after another in one interpreter: this program's, or that of the task's image.

    Variables, imports and definitions last until a cell ends the process or needs more than its time.
    """

    needs_sandbox = True

    def __init__(self, timeout: float = 30.0):
        """Args: ``timeout`` is the wall time of one cell [s]."""
        self._timeout = timeout
        self.read_only = host_python().read_only
        self._worker: ToolWorker | None = None
        code = {"type": "string", "description": "a cell: statements, whose last expression is shown"}
        self.tools = [
            declared(
                "python",
                "Runs Python code in an interpreter that keeps its variables, and returns what it prints.",
                parameters_of({"code": code}, ["code"]),
            )
        ]

    async def open(self, workplace: Workplace) -> None:
        """Takes the sandbox; the interpreter starts with the first cell.

        Raises:
            UserError: programs cannot stay in sandboxes of this kind.
        """
        if not hasattr(workplace.sandbox, "start"):
            raise UserError(
                "the toolset 'python' needs a sandbox in which a program stays; use the backend bubblewrap or nsjail"
            )
        self._worker = ToolWorker(
            workplace.sandbox,
            workplace.task.metadata.get(SOURCE, ""),
            python="python3" if workplace.task.image else None,
        )

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a cell prints, the value of its last expression, and its traceback.

        Raises:
            SandboxError: the sandbox failed.
        """
        return described_cell(await self._worker.run(arguments["code"], timeout=self._timeout), self._timeout)

    async def close(self) -> None:
        """Ends the interpreter."""
        if self._worker is not None:
            await self._worker.close()
            self._worker = None


def described_cell(answer: ToolAnswer, timeout: float) -> str:
    """The outcome of a cell as a model sees it."""
    parts = [answer.output.decode(errors="replace").rstrip("\n")]
    if answer.truncated:
        parts.append("[the rest of the output was dropped]")
    if answer.ended:
        reason = f"was killed after {timeout:g} s" if answer.timed_out else "ended"
        parts.append(f"[the interpreter {reason}; its variables are lost]")
    elif answer.error is not None:
        _, cell, frames = answer.error.partition(_CELL)  # what comes before is the interpreter's own
        parts.append((cell + frames if cell else answer.error).rstrip("\n"))
    return "\n".join(part for part in parts if part)
