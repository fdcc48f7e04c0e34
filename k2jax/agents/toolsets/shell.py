"""The tool ``shell``: commands in the episode's sandbox, whose files stay and whose processes end with each command."""

from __future__ import annotations

import os

from k2jax.agents.sandbox import ExecResult, Sandbox
from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.agents.toolsets.types import Workplace, in_folder

OUTPUT_LIMIT = 1 << 16
"""Bytes that are kept of each output of a command."""
_LONGEST_WORD = 1 << 16
"""Bytes of a command that is an argument of the shell; a longer one is its input, which has no limit of the kernel."""
_FROM_INPUT = 'eval "$(cat)"'
"""Reads all input before the command begins, which then finds none, as it does where it is an argument."""


class ShellTool(FunctionTools):
    """Runs commands of a shell, each in a new process in ``/work``."""

    needs_sandbox = True

    def __init__(self, timeout: float = 30.0):
        """Args: ``timeout`` is the wall time of one command [s]."""
        super().__init__([self.shell])
        self._timeout = timeout
        self._sandbox: Sandbox | None = None

    async def open(self, workplace: Workplace) -> None:
        """Takes the sandbox, whose folder the declaration then names."""
        self._sandbox = workplace.sandbox
        self.tools = in_folder(self.tools, workplace.sandbox.workdir)

    async def shell(self, command: str) -> str:
        """Runs a shell command in /work and returns its output. Files stay, processes end with the command.

        Args:
            command: what /bin/sh runs
        """
        stdin = _long(command)
        argv = ["/bin/sh", "-c", _FROM_INPUT if stdin else command]
        result = await self._sandbox.exec(argv, stdin=stdin, timeout=self._timeout, output_limit=OUTPUT_LIMIT)
        return described(result, self._timeout)


def _long(command: str) -> bytes:
    """The bytes of a command that is too long for an argument; none for another, also where the sandbox refuses it."""
    try:
        text = os.fsencode(command)
    except UnicodeEncodeError:
        return b""
    return text if len(text) > _LONGEST_WORD and b"\0" not in text else b""


def described(result: ExecResult, timeout: float) -> str:
    """A command's outputs as a model sees them, and how it ended where that was not well."""
    parts = [part.decode(errors="replace").rstrip("\n") for part in (result.stdout, result.stderr)]
    if result.truncated:
        parts.append(f"[output beyond {OUTPUT_LIMIT:,} bytes was dropped]")
    if result.out_of_memory:
        parts.append("[killed: out of memory]")
    elif result.timed_out:
        parts.append(f"[killed after {timeout:g} s]")
    elif result.code:
        parts.append(f"[exit code {result.code}]")
    return "\n".join(part for part in parts if part)
