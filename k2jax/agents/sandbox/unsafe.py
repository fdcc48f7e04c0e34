"""No sandbox at all: commands are plain subprocesses of this user, in a temporary folder. Only by its name."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile
import time

from k2jax.agents.sandbox.folder import FolderSandbox
from k2jax.agents.sandbox.types import WORK, Capabilities, Command, ExecResult, MountedPath, Sandbox, SandboxSpec
from k2jax.errors import UserError, abbreviate

_ENVIRONMENT = {"LANG": "C.UTF-8"}
_CHUNK = 1 << 16


class UnsafeBackend:
    """Opens folders in which commands run unprotected: for code that is trusted, and machines without bubblewrap.

    Attributes:
        capabilities: nothing is isolated, and no limit of the spec holds but time and output.
    """

    def __init__(self, *, images: str = ""):
        """Raises UserError where a folder of ``images`` is chosen, of which there are none here."""
        if images:
            raise UserError(f"the unsafe backend has no images: leave {abbreviate(images)} out")
        self.capabilities = Capabilities(
            network="host", memory="none", processes="none", file_system="host", snapshot=False
        )

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """A new folder; see ``SandboxBackend.open``."""
        if spec.image or spec.user:
            raise UserError("the unsafe backend has no images, and no users but this one")
        if spec.hosts:
            raise UserError("the unsafe backend has no proxy, and the network as it is; choose bubblewrap")
        if any(isinstance(path, MountedPath) for path in spec.read_only):
            raise UserError("the unsafe backend shows the host's files at their own places alone")
        return UnsafeSandbox(spec, self.capabilities)


class UnsafeSandbox(FolderSandbox):
    """A temporary folder that paths in /work stand for; processes that left a command's group survive it."""

    def __init__(self, spec: SandboxSpec, capabilities: Capabilities):
        self._path = Path(tempfile.mkdtemp(prefix="k2jax-unsafe-"))
        env = {"HOME": str(self._path), "PATH": os.environ.get("PATH", os.defpath)} | _ENVIRONMENT | dict(spec.env)
        root = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        super().__init__(capabilities, env, root=root, places={"/work": "."}, workdir=spec.workdir or WORK)

    async def _run(self, command: Command) -> ExecResult:
        begun = time.monotonic()
        try:
            process = await asyncio.create_subprocess_exec(
                *command.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._path / self._outside(command.cwd),
                env=command.env,
                start_new_session=True,
            )
        except OSError as error:
            return ExecResult(127, b"", str(error).encode(errors="replace"), time.monotonic() - begun)
        writing = asyncio.create_task(_feed(process.stdin, command.stdin))
        outputs = (process.stdout, process.stderr)
        reading = [asyncio.create_task(_keep(stream, command.output_limit)) for stream in outputs]
        timed_out = False
        try:
            await asyncio.wait_for(process.wait(), command.timeout)
        except TimeoutError:
            timed_out = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            writing.cancel()
        code = await process.wait()
        seconds = time.monotonic() - begun
        await asyncio.wait(reading, timeout=1.0)  # a process that left the group may hold them open
        kept = [task.result() if task.done() else (b"", True) for task in reading]
        for task in reading:
            task.cancel()
        return ExecResult(
            code=128 - code if code < 0 else code,
            stdout=kept[0][0],
            stderr=kept[1][0],
            seconds=seconds,
            timed_out=timed_out,
            truncated=kept[0][1] or kept[1][1],
        )

    async def _end(self) -> None:
        # rm goes down any depth; Python's own recursion does not.
        remove = await asyncio.create_subprocess_exec(
            "/bin/rm", "-rf", "--one-file-system", str(self._path), stderr=sys.stderr
        )
        await remove.wait()


async def _feed(stream: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        stream.write(data)
        await stream.drain()
    stream.close()


async def _keep(stream: asyncio.StreamReader, limit: int) -> tuple[bytes, bool]:
    """The first ``limit`` bytes of an output, and whether there were more; reads to its end."""
    kept, truncated = bytearray(), False
    while data := await stream.read(_CHUNK):
        room = limit - len(kept)
        truncated |= len(data) > room
        kept += data[:room]
    return bytes(kept), truncated
