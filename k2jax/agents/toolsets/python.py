"""The tool ``python``: a stateful interpreter in the episode's sandbox."""

from __future__ import annotations

from typing import Any

from k2jax.agents.sandbox import SandboxError
from k2jax.agents.sandbox.interpreter import host_packages, host_python
from k2jax.agents.sandbox.python_worker import ToolAnswer, ToolWorker
from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.agents.toolsets.types import ToolError, Workplace
from k2jax.errors import UserError

SOURCE = "python_source"
"""Key of a task's metadata: Python source that the interpreter runs before its first cell. It imports the standard
library alone."""
_IMPORTABLE = (
    "\n__import__('sys').path += {folders!r}; __import__('os').environ.setdefault('OPENBLAS_NUM_THREADS', '1')\n"
)
"""Source that lets packages be imported. NumPy would begin with a thread for each core, beyond a sandbox's limit."""
_CELL = '  File "<code>"'


class PythonTool(FunctionTools):
    """Runs cells of Python one after another in one interpreter: this program's, or that of the task's image.

    Variables, imports and definitions last until a cell ends the process or needs more than its time.

    Args:
        timeout: wall time of one cell [s].
        packages: installed packages of this program that cells can import beside the standard library.

    Raises:
        UserError: a package is not installed.
    """

    needs_sandbox = True

    def __init__(self, timeout: float = 30.0, packages: tuple[str, ...] = ()):
        super().__init__([self.python])
        self._timeout = timeout
        shown = host_packages(packages)
        self._folders = list(shown.folders)
        self.read_only = (*host_python().read_only, *shown.read_only)
        self._worker: ToolWorker | None = None
        self._sandbox: Any = None
        self._has_run = False

    async def open(self, workplace: Workplace) -> None:
        """Takes the sandbox; the interpreter starts with the first cell.

        Raises:
            UserError: programs cannot stay in sandboxes of this kind, or the task has an image, whose packages are its
                own.
        """
        if not workplace.sandbox.capabilities.residents:
            raise UserError(
                "the toolset 'python' needs a sandbox in which a program stays; use the backend bubblewrap or nsjail"
            )
        task = workplace.task
        if self._folders and task.image:
            raise UserError(
                f"the toolset 'python' shows no packages in the image of the task {task.id!r}; leave the option "
                "packages out"
            )
        importable = _IMPORTABLE.format(folders=self._folders) if self._folders else ""
        source = task.metadata.get(SOURCE, "") + importable  # that source may begin with imports of __future__
        self._sandbox = workplace.sandbox
        self._worker = ToolWorker(workplace.sandbox, source, python="python3" if task.image else None)

    async def python(self, code: str) -> str:
        """Runs Python code in an interpreter that keeps its variables, and returns what it prints.

        Args:
            code: a cell: statements, whose last expression is shown

        Raises:
            ToolError: what the agent has left in the sandbox keeps the interpreter from starting.
            SandboxError: the sandbox failed, or the task's own source cannot be run.
        """
        try:
            answer = await self._worker.run(code, timeout=self._timeout)
        except SandboxError as error:
            in_folder = await self._sandbox.exec(["/bin/sh", "-c", ":"])
            if not self._has_run and not in_folder.code:
                raise
            raise ToolError(f"the interpreter cannot be started: {error}") from None
        self._has_run = True
        return described_cell(answer, self._timeout)

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
