"""The connection of a program to its spawner: requests from any thread, answers as futures."""

from __future__ import annotations

from concurrent.futures import Future
import contextlib
import itertools
import os
from pathlib import Path
import socket
import subprocess
import sys
import tempfile
import threading
from typing import Any, NamedTuple

from k2jax.agents.sandbox import wire
from k2jax.agents.sandbox.types import SandboxError

_PACKAGE_PARENT = str(Path(__file__).resolve().parents[3])
_START = "from k2jax.agents.sandbox.spawner_process import run; run(sys.argv[1:])"
_PROGRAM = f"import sys; sys.path.append(sys.argv.pop(1)); {_START}"
_COMMAND = (sys.executable, "-I", "-S", "-c", _PROGRAM, _PACKAGE_PARENT)
_PATIENCE = 20.0
"""How long a spawner may take to start [s]."""


class Answer(NamedTuple):
    """What the spawner answered.

    Attributes:
        record: see ``spawner.SandboxSpawner``.
        payload: bytes beside it.
        descriptor: what came with it; whoever takes the answer closes it.
    """

    record: dict[str, Any]
    payload: bytes
    descriptor: int | None


class Link:
    """One running spawner.

    Args:
        kind: what isolates; see ``spawner_process.LAUNCHERS``.
        program: path of that program, relative to ``wheel`` where that is given.
        wheel: a folder that only this user may be able to reach; or empty.
        groups: whether to use control groups.
        python: of fork servers, as JSON; see ``spawner.SandboxSpawner``.

    Raises:
        SandboxError: it does not start; the message is the kernel's.

    Attributes:
        pid: of the program that started it: a fork of that program needs a link of its own.
        alive: whether it still answers.
    """

    def __init__(self, kind: str, program: str, wheel: str, groups: bool, python: str = "null"):
        self.pid, self.alive = os.getpid(), True
        self._waiting: dict[int, Future[Answer]] = {0: Future()}
        self._later: dict[int, Future[Answer]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # of what is waited for; never held while the connection blocks
        self._sending = threading.Lock()  # of the connection's outgoing direction, and of closing it
        self._folder = folder = tempfile.mkdtemp(prefix="k2jax-sandbox-", dir=_temporary())
        self._connection, theirs = socket.socketpair()
        mode = "groups" if groups else "limits"
        with theirs:
            self._process = subprocess.Popen(
                [*_COMMAND, str(theirs.fileno()), folder, kind, program, wheel, mode, python],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        hello = self._waiting[0]
        threading.Thread(target=self._listen, name="sandbox-link", daemon=True).start()
        try:
            hello.result(_PATIENCE)
        except (SandboxError, TimeoutError) as error:
            self.close()
            raise SandboxError(f"the spawner of sandboxes did not start: {error}") from None

    def ask(
        self, kind: str, payload: bytes = b"", *, later: Future[Answer] | None = None, **record: Any
    ) -> tuple[int, Future[Answer]]:
        """Sends a request; returns its number and the future of its answer, which fails with SandboxError.

        Args:
            kind: see ``spawner.SandboxSpawner``, for ``record`` too.
            payload: bytes beside the record.
            later: gets the second answer, of a request that has two.
            record: the rest of the request.
        """
        number, future = next(self._numbers), Future()
        future.set_running_or_notify_cancel()  # it is always answered
        head = wire.encode_head(wire.Message({"kind": kind, "request": number} | record, payload))
        with self._lock:
            if not self.alive:
                raise SandboxError("the spawner of sandboxes has ended")
            if kind != "kill":
                self._waiting[number] = future
            if later is not None:
                later.set_running_or_notify_cancel()
                self._later[number] = later
        try:
            with self._sending:
                self._connection.sendall(head)
                self._connection.sendall(payload)
        except OSError as error:
            with self._lock:
                self._waiting.pop(number, None)
            raise SandboxError(f"the spawner of sandboxes has ended: {error}") from None
        return number, future

    @property
    def process_id(self) -> int:
        """Of the spawner."""
        return self._process.pid

    def close(self) -> None:
        """Ends the spawner, and with it all its sandboxes."""
        if os.getpid() != self.pid:
            return
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)

    def _listen(self) -> None:
        decoder, descriptors = wire.Decoder(), []
        with contextlib.suppress(OSError):
            while True:
                data, arrived = wire.receive(self._connection)
                if not data:
                    break
                descriptors += arrived
                for message in decoder.feed(data):
                    self._resolve(message, descriptors)
        with self._lock:
            self.alive = False
            waiting = [*self._waiting.values(), *self._later.values()]
            self._waiting, self._later = {}, {}
        with self._sending:  # whoever sends meets an error: the other end is gone
            self._connection.close()
        for future in waiting:
            future.set_exception(SandboxError("the spawner of sandboxes has ended"))
        if self._process.wait() != 0:  # its warden cleans up behind it, if it came to start one
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)

    def _resolve(self, message: wire.Message, descriptors: list[int]) -> None:
        descriptor = descriptors.pop(0) if message.record.keys() & {"box", "started"} else None
        with self._lock:
            future = self._waiting.pop(message.record["request"])
            later = self._later.pop(message.record["request"], None)
            if later is not None and not message.record.get("failure"):
                self._waiting[message.record["request"]] = later
        if message.record.get("failure"):
            future.set_exception(SandboxError(message.record["failure"]))
        else:
            future.set_result(Answer(message.record, message.payload, descriptor))


def _temporary() -> str:
    """A folder for temporary files that the user of root's sandboxes can reach as well."""
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        places = [Path(folder), *Path(folder).parents]
        if os.geteuid() != 0 or all(place.is_dir() and place.stat().st_mode & 1 for place in places):
            return folder
    raise SandboxError("other users can reach no folder for temporary files")
