"""Where workers run: processes of this machine, or actors of a Ray cluster (extra ``ray``).

All nodes of a cluster see the collection's folder under one path. An actor connects to the scheduler over TCP and
proves with a random key that it is the one that was started. From then on it is a worker like any other: Ray carries no
task and no trajectory. When it dies, Ray does not start it again; the scheduler starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
from pathlib import Path
import secrets
import socket
import struct
import subprocess
import sys
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from k2jax.agents.collect.event_loop import run
from k2jax.agents.collect.worker import work
from k2jax.errors import UserError

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


PATIENCE = 180.0
"""Time for an actor to be there: a node may have to be added first [s]."""
_KEY_BYTES = 32
_PID = struct.Struct("<Q")


def connect_to_ray(address: str) -> ModuleType:
    """The module of Ray, connected to a cluster.

    Args:
        address: see ``RayLauncher``.

    Raises:
        UserError: Ray is not installed, or there is no such cluster.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise UserError('Ray is not installed: pip install -e ".[ray]"') from None
    local = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if address == "local" else {}
    try:
        if address.rpartition(":")[2].isdecimal():  # Ray itself tries for minutes
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), timeout=10.0).close()
        ray.init(address=address, ignore_reinit_error=True, **local)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"there is no Ray cluster at {address!r}: {' '.join(str(error).split())[:200]}") from None
    return ray


class RayLauncher:
    """Starts actors, spread over the nodes.

    Args:
        address: of a cluster, ``auto`` for the one that this node belongs to, or ``local`` for a new one on this
            machine, which listens on 127.0.0.1 and has no dashboard.

    Attributes:
        host: the address of this machine at which actors reach it.

    Raises:
        UserError: Ray is not installed, or there is no such cluster.
    """

    def __init__(self, address: str):
        self._ray = ray = connect_to_ray(address)
        self.host: str = ray.util.get_node_ip_address()
        self._actor = ray.remote(_Actor).options(num_cpus=1, scheduling_strategy="SPREAD", max_restarts=0)

    async def start(self, folder: Path, shard: int) -> _RayWorker:
        """See ``WorkerLauncher.start``."""
        key = secrets.token_bytes(_KEY_BYTES)
        with socket.create_server((self.host, 0)) as listener:
            listener.setblocking(False)
            actor = self._actor.remote()
            here = _Here(os.getcwd(), sys.path)
            working = actor.work.remote(str(folder.absolute()), listener.getsockname()[:2], key, shard, here)
            arriving = asyncio.ensure_future(_arrived(listener, key))
            failing = asyncio.wrap_future(working.future())
            try:
                await asyncio.wait([arriving, failing], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not arriving.done():
                    arriving.cancel()
                    self._ray.kill(actor)
        if arriving.cancelled() or not arriving.done():
            reason = failing.exception() if failing.done() and not failing.cancelled() else None
            raise UserError(f"an actor of the Ray cluster did not connect: {reason or 'is a processor free?'}")
        failing.add_done_callback(lambda done: done.cancelled() or done.exception())  # its death is the socket's end
        return _RayWorker(self._ray, actor, *arriving.result())


class _RayWorker:
    """See ``WorkerHandle``."""

    def __init__(self, ray: Any, actor: Any, sock: socket.socket, pid: int):
        self._ray, self._actor = ray, actor
        self.socket, self.pid = sock, pid

    def end(self) -> None:
        self._ray.kill(self._actor)


class _Here(NamedTuple):
    """What processes of this machine inherit: the working folder, and where packages of the user are."""

    folder: str
    paths: list[str]

    def adopt(self) -> None:
        """Makes it an actor's own; a node that does not have the folder resolves no relative path of a config."""
        sys.path += [path for path in self.paths if path not in sys.path]
        if os.path.isdir(self.folder):
            os.chdir(self.folder)


class _Actor:
    """A worker in the process of an actor."""

    def work(self, folder: str, address: tuple[str, int], key: bytes, shard: int, here: _Here) -> None:
        """Works until the scheduler closes the connection."""
        here.adopt()
        with socket.create_connection(address) as connection:
            connection.sendall(key + _PID.pack(os.getpid()))
            run(work(Path(folder), connection, shard))


async def _arrived(listener: socket.socket, key: bytes) -> tuple[socket.socket, int]:
    """The first connection that knows the key, and the process id that it names."""
    loop = asyncio.get_running_loop()
    while True:
        sock, _ = await loop.sock_accept(listener)
        sock.setblocking(False)
        greeting = b""
        try:
            async with asyncio.timeout(10.0):
                while len(greeting) < _KEY_BYTES + _PID.size:
                    part = await loop.sock_recv(sock, _KEY_BYTES + _PID.size - len(greeting))
                    if not part:
                        break
                    greeting += part
        except (OSError, TimeoutError):
            greeting = b""
        if hmac.compare_digest(greeting[:_KEY_BYTES], key):
            return sock, *_PID.unpack(greeting[_KEY_BYTES:])
        sock.close()
