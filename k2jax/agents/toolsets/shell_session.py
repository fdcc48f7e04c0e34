"""The tool ``bash``: a shell that stays in the sandbox, with its folder, variables and background programs."""

from __future__ import annotations

import asyncio
import secrets
import shlex

from k2jax.agents.sandbox import ExecResult, Sandbox
from k2jax.agents.sandbox.process import SandboxProcess
from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.agents.toolsets.shell import OUTPUT_LIMIT
from k2jax.agents.toolsets.types import ToolError, Workplace
from k2jax.errors import UserError

_LONGEST = 1 << 20
"""Bytes of a command."""
_START = "exec 9>&1; if command -v bash > /dev/null; then exec bash --norc --noprofile; else exec /bin/sh; fi"
"""Descriptor 9 tells of ends also where a command has sent all later outputs elsewhere."""
_NEXT = "the next command begins a new shell"
_CHUNK = 1 << 16


class ShellSession(FunctionTools):
    """Runs commands one after another in one shell, bash where the sandbox has it.

    Folder, variables, functions and background programs last until the shell ends: by ``exit``, by a command past its
    time, or by the argument ``restart``. Both outputs come in one text; commands have no input.

    Args:
        timeout: wall time of one command [s].
    """

    needs_sandbox = True

    def __init__(self, timeout: float = 30.0):
        super().__init__([self.bash])
        self._timeout = timeout
        self._sandbox: Sandbox | None = None
        self._shell: _Shell | None = None

    async def open(self, workplace: Workplace) -> None:
        """Takes the sandbox; the shell starts with the first command.

        Raises:
            UserError: programs cannot stay in sandboxes of this kind.
        """
        if not workplace.sandbox.capabilities.residents:
            raise UserError(
                "the toolset 'shell_session' needs a sandbox in which a program stays; use the backend bubblewrap or "
                "nsjail, or the toolset 'shell'"
            )
        self._sandbox = workplace.sandbox

    async def bash(self, command: str, restart: bool = False) -> str:
        """Runs a command in a shell that keeps its folder, variables and background programs, and returns its output.

        Args:
            command: what the shell runs
            restart: whether a new shell takes the place of the one before

        Raises:
            ToolError: no shell can run it.
            SandboxError: the sandbox failed.
        """
        try:
            text = command.encode()
        except UnicodeEncodeError:
            raise ToolError("the command has characters that are no text") from None
        if len(text) > _LONGEST or b"\0" in text:
            raise ToolError(f"a command has no null character and at most {_LONGEST:,} bytes")
        if restart:
            await self.close()
        if self._shell is None:
            self._shell = await _Shell.begin(self._sandbox)
        try:
            async with asyncio.timeout(self._timeout):
                output, code = await self._shell.run(command)
        except TimeoutError:
            output = self._shell.rest()
            await self.close()
            return _described(output, f"killed after {self._timeout:g} s; {_NEXT}")
        except BaseException:
            await self.close()
            raise
        if code is None:
            ended, self._shell = await self._shell.end(), None
            how = "ran out of memory" if ended.out_of_memory else f"has ended with code {ended.code}"
            return _described(output, f"the shell {how}; {_NEXT}")
        return _described(output, f"exit code {code}" if code else "")

    async def close(self) -> None:
        """Ends the shell with all that it has started."""
        shell, self._shell = self._shell, None
        if shell is not None:
            await shell.kill()


class _Shell:
    """One running shell, which reads commands from a socket and writes both outputs there.

    Args:
        process: the shell.
    """

    def __init__(self, process: SandboxProcess):
        self._process = process
        self._kept, self._is_cut = bytearray(), False
        self._seen = b""

    @classmethod
    async def begin(cls, sandbox: Sandbox) -> _Shell:
        """Starts one in the sandbox's own folder."""
        return cls(await sandbox.start(["/bin/sh", "-c", _START]))

    async def run(self, command: str) -> tuple[bytes, int | None]:
        """The output of a command and its exit code; None where the shell has ended with it."""
        self._kept, self._is_cut = bytearray(), False
        mark = secrets.token_hex(16)
        # What a command redirects holds for it alone, and a mistake in its syntax does not end bash.
        line = f"eval {shlex.quote(command)} < /dev/null 2>&1; printf '\\n%s %d\\n' {mark} $? >&9\n"
        loop, connection = asyncio.get_running_loop(), self._process.connection
        sending = asyncio.create_task(loop.sock_sendall(connection, line.encode()))
        try:
            return await self._read(f"\n{mark} ".encode())
        except OSError:  # it has closed the other end, or the sandbox has
            return self.rest(), None
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _read(self, mark: bytes) -> tuple[bytes, int | None]:
        loop = asyncio.get_running_loop()
        while True:
            data = await loop.sock_recv(self._process.connection, _CHUNK)
            if not data:
                return self.rest(), None
            self._seen += data
            before, found, after = self._seen.partition(mark)
            if found and b"\n" in after:
                self._keep(before)
                code, _, self._seen = after.partition(b"\n")  # what comes after it is of programs that go on
                return self.output(), int(code)
            if not found:  # the mark may have begun
                self._keep(self._seen[: -len(mark)])
                self._seen = self._seen[-len(mark) :]

    def _keep(self, data: bytes) -> None:
        room = OUTPUT_LIMIT - len(self._kept)
        self._is_cut |= len(data) > room
        self._kept += data[:room]

    def output(self) -> bytes:
        """What the command has written, as much as is kept."""
        note = f"\n[output beyond {OUTPUT_LIMIT:,} bytes was dropped]".encode() if self._is_cut else b""
        return bytes(self._kept) + note

    def rest(self) -> bytes:
        """The same of a command that has not told its end."""
        self._keep(self._seen)
        return self.output()

    async def kill(self) -> None:
        """Kills the shell and all that it has started."""
        await self._process.kill()

    async def end(self) -> ExecResult:
        """Kills the shell, where it has not ended by itself, and all that it has started; says how it ended.

        Raises:
            SandboxError: the sandbox failed.
        """
        await self._process.kill()
        return await self._process.wait()


def _described(output: bytes, how: str) -> str:
    """An output as a model sees it, and how the command ended where that was not well."""
    text = output.decode(errors="replace").rstrip("\n")
    return "\n".join(part for part in (text, f"[{how}]" if how else "") if part)
