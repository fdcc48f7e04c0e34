"""Where workers run: processes of this machine here, actors of a Ray cluster in ``ray_workers``."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
import socket
import subprocess
import sys
from typing import Protocol

from k2jax.agents.collect.wire import FrameConnection

_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
_WORKER = "k2jax.agents.collect.worker"


class WorkerHandle(Protocol):
    """A worker as the scheduler sees it.

    Attributes:
        socket: to it.
        pid: of its process, on its machine.
    """

    socket: socket.socket
    pid: int

    def end(self) -> None:
        """Waits for its end, which the end of the socket asks for, or kills it; it blocks."""
        ...


class WorkerLauncher(Protocol):
    """Starts workers."""

    async def start(self, folder: Path, shard: int) -> WorkerHandle:
        """A new worker of a collection, which serves its socket once it is ready.

        Raises:
            UserError: it cannot be started.
        """
        ...


class LocalLauncher:
    """Starts processes of this machine."""

    async def start(self, folder: Path, shard: int) -> WorkerHandle:
        """See ``WorkerLauncher.start``."""
        return _LocalWorker(folder, shard)


class _LocalWorker:
    """A process with a session of its own.

    Linux divides the processors among sessions before it looks at processes (autogroup): in one session with thousands
    of busy coroutines the scheduler would wait for its turn for tenths of a second.
    """

    def __init__(self, folder: Path, shard: int):
        self.socket, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-m", _WORKER, str(folder), str(theirs.fileno()), str(shard)]
            self._process = subprocess.Popen(
                argv,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | _ONE_THREAD,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def end(self, timeout: float = 10.0) -> None:
        """See ``WorkerHandle.end``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
            return
        self._process.kill()
        self._process.wait()


async def connect(connection: FrameConnection, sock: socket.socket) -> None:
    """Hands a connected stream socket, of Unix or of TCP, to a connection of frames."""
    loop = asyncio.get_running_loop()
    if sock.family == socket.AF_UNIX:
        await loop.create_unix_connection(lambda: connection, sock=sock)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.create_connection(lambda: connection, sock=sock)
