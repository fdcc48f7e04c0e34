"""A process among the others of its run: how it waits for them, hears of their end, and ends with them.

The first process that fails, or sees another one gone, leaves a verdict in the key-value store of jax's coordination
service: one line and one exit code, for all. A collective that waits for a dead process cannot be interrupted, so a
process is ended by the thread that hears the verdict.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any, NoReturn

from k2jax.processes.meeting import ProcessLostError

PAUSE_SECONDS = 2.0
"""Between two looks at who is alive."""
LEAVE_SECONDS = 20.0
"""How long process 0, which holds the service, stays for the others to end before it."""
_FOREVER = 365 * 24 * 3600.0
_VERDICT = "k2jax/verdict"
_HOSTS = "k2jax/host/"


class Group:
    """The processes of a run, seen from one of them.

    Args:
        client: of jax's coordination service.
        index: of this process.
        count: how many there are.
        address: HOST:PORT of the service.

    Attributes:
        position: the step being computed and the newest that is saved, where known, for what is said of a lost process.
    """

    def __init__(self, client: Any, index: int, count: int, address: str):
        self.index, self.count = index, count
        self.position: Callable[[], tuple[int | None, int | None]] = lambda: (None, None)
        self._client, self._host, self._hosts = client, socket.gethostname(), {}
        self._address, self._ending = address, threading.Lock()
        self._abort_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._aborting)
        ctypes.CDLL(None).signal(signal.SIGABRT, self._abort_handler)
        client.key_value_set(f"{_HOSTS}{index}", self._host)
        for target in (self._watch_verdict, self._watch_peers):
            threading.Thread(target=target, name=target.__name__, daemon=True).start()

    def barrier(self, name: str, seconds: float | None) -> None:
        """Returns when every process has come here; ``name`` is used once in a run.

        Raises:
            ProcessLostError: some did not come within ``seconds``; it names them.
            Exception: jax's own, when a process dies before: the watchers name it.
        """
        folder = f"k2jax/barrier/{name}/"
        try:
            self._client.key_value_set(f"{folder}{self.index}", self._host)
            self._client.wait_at_barrier(f"k2jax/{name}", int((_FOREVER if seconds is None else seconds) * 1000))
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            came = self._entries(folder)
            self._hosts |= self._entries(_HOSTS)
            missing = [index for index in range(self.count) if index not in came]
            raise ProcessLostError(
                f"{self._names(missing) or 'a process'} did not come to {name!r} within {seconds:g} s: the run stops "
                "here; see why there, and start it again"
            ) from error

    def of_first(self, name: str, text: str) -> str:
        """Process 0's ``text``, in every process; ``name`` is used once in a run."""
        key = f"k2jax/first/{name}"
        if self.index == 0:
            self._client.key_value_set(key, text)
        return self._client.blocking_key_value_get(key, int(_FOREVER * 1000))

    def stop(self, line: str, code: int, of: int | None = None, lost: tuple[int, ...] = ()) -> NoReturn:
        """Ends this process and, unless a verdict was given before, all others as well.

        Args:
            line: what is said.
            code: every process' exit code.
            of: the process that failed, where the line does not name it.
            lost: processes that will not come to their end.
        """
        self._ending.acquire()  # never released: one thread ends the process, any other waits here for that
        verdict = {"line": line, "code": code, "of": of, "lost": lost}
        if 0 not in lost:
            with contextlib.suppress(Exception):
                self._client.key_value_set(_VERDICT, json.dumps(verdict))
            if of != self.index:
                with contextlib.suppress(Exception):
                    verdict = json.loads(self._client.blocking_key_value_get(_VERDICT, 1000))
        self._say(verdict["line"], verdict["of"])
        self._exit(verdict["code"], verdict["lost"])

    def leave(self, code: int) -> NoReturn:
        """Ends this process after an ordinary run, when all have come so far."""
        self.barrier("end", None)
        self._ending.acquire()
        self._exit(code, ())

    def _names(self, indices: list[int]) -> str:
        """``process 2 (host-b), process 3 (host-c)``."""
        return ", ".join(f"process {i} ({self._hosts[i]})" if i in self._hosts else f"process {i}" for i in indices)

    def _entries(self, folder: str) -> dict[int, str]:
        """What processes have set below ``folder``, by process; empty where the service is gone."""
        with contextlib.suppress(Exception):
            return {int(key.rpartition("/")[2]): value for key, value in self._client.key_value_dir_get(folder)}
        return {}

    def _say(self, line: str, of: int | None) -> None:
        if of not in (None, self.index):
            if of not in self._hosts:  # it failed before anyone was looked at
                self._hosts |= self._entries(_HOSTS)
            line = f"{self._names([of])} stopped: {line}"
        prefix = f"process {self.index}: " if self.index else ""
        os.write(2, f"error: {prefix}{line}\n".encode())  # past Python's buffers, whose lock another thread may hold

    def _exit(self, code: int, lost: tuple[int, ...]) -> NoReturn:
        """Not through the interpreter's end, where jax waits for all others and threads waiting in C++ abort."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        if 0 not in lost:
            with contextlib.suppress(Exception):
                self._client.key_value_set(f"k2jax/left/{self.index}", "")
        deadline = time.monotonic() + LEAVE_SECONDS
        while self.index == 0 and time.monotonic() < deadline:  # jax aborts a process that outlives the service
            if len(self._entries("k2jax/left/").keys() | set(lost)) == self.count:
                time.sleep(0.5)
                break
            time.sleep(0.1)
        os._exit(code)

    def _aborting(self, number: int) -> None:
        """Says why jax aborts this process, where the service is gone; jax knows no other way of taking that.

        A handler of Python's own would run in the main thread, after the abort: this one is called in the thread that
        aborts. When it returns the abort goes on.
        """
        if self.index and not _answers(self._address):
            self._stop_without([0])

    def _watch_verdict(self) -> None:
        try:
            verdict = json.loads(self._client.blocking_key_value_get(_VERDICT, int(_FOREVER * 1000)))
        except Exception:
            self._stop_without([0])
        self.stop(verdict["line"], verdict["code"], verdict["of"], tuple(verdict["lost"]))

    def _watch_peers(self) -> None:
        """Each look waits for the look of every other living process: none is dead for being slow in Python."""
        everyone = list(range(self.count))
        try:
            first = self._client.get_live_nodes(everyone)
            self._hosts |= self._entries(_HOSTS)
            lost = [index for index in everyone if index not in first]
            while not lost:
                time.sleep(PAUSE_SECONDS)
                live = self._client.get_live_nodes(everyone)
                # One that was started again in its place has another number of incarnation.
                lost = [index for index in everyone if live.get(index) != first[index]]
        except Exception:
            lost = [0]
        self._stop_without(lost)

    def _stop_without(self, lost: list[int]) -> NoReturn:
        step, saved = self.position()
        since = "" if step is None else f" since step {step}"
        mend = "" if step is None else ", it begins anew" if saved is None else f", it resumes from step {saved}"
        verb = "does" if len(lost) == 1 else "do"
        line = f"{self._names(lost)} {verb} not answer{since}: the run stops here; start it again{mend}"
        self.stop(line, 1, lost=tuple(lost))


def _answers(address: str) -> bool:
    """Whether something listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        return False
    return True
