"""One process in the group of its run: barriers, detection of lost processes, and a common end.

The first process that fails, or detects that another one is lost, writes a verdict to the key-value store of jax's
coordination service: one error line and one exit code for all processes. A collective that waits for a lost process
cannot be interrupted, so the thread that receives the verdict ends the process.
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

from k2jax.processes.rendezvous import ProcessLostError

POLL_SECONDS = 2.0
"""Interval between two queries for the live processes."""
NEWS_SECONDS = 32.0
"""One and a half of jax's own heartbeats, and a query for the live processes."""
LEAVE_SECONDS = 20.0
"""How long process 0, which runs the service, waits for the other processes to end before it ends."""
_FOREVER = 365 * 24 * 3600.0
_VERDICT = "k2jax/verdict"
_NOTICE = "RECEIVED_PREEMPTION_NOTICE"  # jax's own, which it sets when a process has received SIGTERM
_HOSTS = "k2jax/host/"
_FIRST = "k2jax/first/"
_TOLD = "k2jax/told/"


class Group:
    """The processes of a run, as one of them sees them.

    Args:
        client: client of jax's coordination service.
        index: index of this process.
        count: number of processes.
        address: HOST:PORT of the service.
        name: what the processes are together, for messages.

    Attributes:
        position: returns the current step and the newest checkpoint's step, or None where they are unknown; the message
            about a lost process mentions them.
        news_seconds: longest time in which the news of a lost process comes to this one [s].
        stop_asked: whether a process of the run has received SIGTERM.
    """

    def __init__(self, client: Any, index: int, count: int, address: str, name: str = "the run"):
        self.index, self.count, self._name = index, count, name
        self.position: Callable[[], tuple[int | None, int | None]] = lambda: (None, None)
        self.news_seconds, self.stop_asked = NEWS_SECONDS, False
        self._client, self._host, self._hosts = client, socket.gethostname(), {}
        self._address, self._ending = address, threading.Lock()
        self._abort_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._on_abort)
        ctypes.CDLL(None).signal(signal.SIGABRT, self._abort_handler)
        client.key_value_set(f"{_HOSTS}{index}", self._host)
        for target in (self._watch_verdict, self._watch_peers, self._watch_notice):
            threading.Thread(target=target, name=target.__name__, daemon=True).start()

    def barrier(self, name: str, seconds: float | None) -> None:
        """Waits until every process has called it with this name; each name is used once in a run.

        Raises:
            ProcessLostError: some processes did not reach the barrier within ``seconds``; the message names them.
            Exception: jax's own error if a process is lost while this one waits; the watchers name that process.
        """
        folder = f"k2jax/barrier/{name}/"
        try:
            self._client.key_value_set(f"{folder}{self.index}", self._host)
            self._client.wait_at_barrier(f"k2jax/{name}", int((_FOREVER if seconds is None else seconds) * 1000))
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            arrived = self._read_entries(folder)
            self._hosts |= self._read_entries(_HOSTS)
            missing = [index for index in range(self.count) if index not in arrived]
            raise ProcessLostError(
                f"{self._names(missing) or 'a process'} did not reach {name!r} within {seconds:g} s: {self._name} "
                f"stops; see why in the log of that process, and restart {self._name}"
            ) from error

    def broadcast_from_first(self, name: str, text: str) -> str:
        """Returns process 0's ``text`` in every process; each ``name`` is used once in a run.

        The last process to read the text deletes it, so that the service does not grow with the run.
        """
        key = f"{_FIRST}{name}"
        if self.index == 0:
            self._client.key_value_set(key, text)
        read = self._client.blocking_key_value_get(key, int(_FOREVER * 1000))
        if self._client.key_value_increment(f"{key}/readers", 1) == self.count:
            self._client.key_value_delete(key)  # and what is below it
        return read

    def tell(self, name: str, text: str) -> None:
        """Sets a text that every process can ``read``; each ``name`` is used once in a run."""
        self._client.key_value_set(f"{_TOLD}{name}", text)

    def read(self, name: str, seconds: float) -> str:
        """Waits for the text that a process has told under a name.

        Raises:
            ProcessLostError: none has come in time.
        """
        try:
            return self._client.blocking_key_value_get(f"{_TOLD}{name}", int(seconds * 1000))
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            raise ProcessLostError(f"no process has told {name!r} within {seconds:g} s; restart the run") from error

    def own_host(self) -> str:
        """The address of this machine in the network in which it reaches process 0."""
        host, _, port = self._address.rpartition(":")
        family, kind, *_, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return probe.getsockname()[0]

    def name_of(self, index: int) -> str:
        """A process for a message: ``process 2 (host-b)``."""
        self._hosts |= self._read_entries(_HOSTS) if index not in self._hosts else {}
        return self._names([index])

    def stop(self, line: str, code: int, failed: int | None = None, lost: tuple[int, ...] = ()) -> NoReturn:
        """Ends this process and all others with one verdict; an earlier verdict has precedence.

        Args:
            line: the error message.
            code: exit code of every process.
            failed: index of the process that failed, unless the line names it.
            lost: indices of processes that cannot end in an orderly way.
        """
        self._ending.acquire()  # never released: one thread ends the process while any other waits here
        verdict = {"line": line, "code": code, "failed": failed, "lost": lost}
        if 0 not in lost:
            with contextlib.suppress(Exception):
                self._client.key_value_set(_VERDICT, json.dumps(verdict))
            if failed != self.index:
                with contextlib.suppress(Exception):
                    verdict = json.loads(self._client.blocking_key_value_get(_VERDICT, 1000))
        self._print_error(verdict["line"], verdict["failed"])
        self._exit(verdict["code"], verdict["lost"])

    def ending(self) -> str:
        """The end of a message behind which all processes end: what stops, and how it goes on."""
        step, saved = self.position()
        remedy = "restart it"
        if step is not None:
            remedy += "; it begins from scratch" if saved is None else f"; it resumes from step {saved}"
        return f"{self._name} stops; {remedy}"

    def leave(self, code: int) -> NoReturn:
        """Ends this process after a successful run, once every process has finished."""
        self.barrier("end", None)
        self._ending.acquire()
        self._exit(code, ())

    def _names(self, indices: list[int]) -> str:
        """Processes for a message: ``process 2 (host-b), process 3 (host-c)``."""
        return ", ".join(f"process {i} ({self._hosts[i]})" if i in self._hosts else f"process {i}" for i in indices)

    def _read_entries(self, folder: str) -> dict[int, str]:
        """The values that processes have set below ``folder``, by process; empty if the service is lost."""
        with contextlib.suppress(Exception):
            return {int(key.rpartition("/")[2]): value for key, value in self._client.key_value_dir_get(folder)}
        return {}

    def _print_error(self, line: str, failed: int | None) -> None:
        if failed not in (None, self.index):
            if failed not in self._hosts:  # it failed before the first query for live processes
                self._hosts |= self._read_entries(_HOSTS)
            line = f"{self._names([failed])} stopped: {line}"
        prefix = f"process {self.index}: " if self.index else ""
        # Not through Python's buffers, whose lock another thread may hold. Whoever reads may be gone.
        with contextlib.suppress(OSError):
            os.write(2, f"error: {prefix}{line}\n".encode())

    def _exit(self, code: int, lost: tuple[int, ...]) -> NoReturn:
        """Ends the process at once.

        At an ordinary exit of the interpreter jax waits for all other processes, and threads that wait in C++ abort.
        """
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        if 0 not in lost:
            with contextlib.suppress(Exception):
                self._client.key_value_set(f"k2jax/left/{self.index}", "")
        deadline = time.monotonic() + LEAVE_SECONDS
        while self.index == 0 and time.monotonic() < deadline:  # jax aborts a process that outlives the service
            if len(self._read_entries("k2jax/left/").keys() | set(lost)) == self.count:
                time.sleep(0.5)
                break
            time.sleep(0.1)
        os._exit(code)

    def _on_abort(self, number: int) -> None:
        """Prints why jax aborts this process, if the service is lost; jax cannot be told not to abort then.

        A Python signal handler would run in the main thread, after the abort. This C handler runs in the thread that
        aborts, and the abort continues when it returns.
        """
        if self.index and not _accepts_connections(self._address):
            self.stop_without([0])

    def _watch_verdict(self) -> None:
        try:
            verdict = json.loads(self._client.blocking_key_value_get(_VERDICT, int(_FOREVER * 1000)))
        except Exception:
            self.stop_without([0])
        self.stop(verdict["line"], verdict["code"], verdict["failed"], tuple(verdict["lost"]))

    def _watch_notice(self) -> None:
        with contextlib.suppress(Exception):  # the service is gone, which the other watchers see
            self._client.blocking_key_value_get(_NOTICE, int(_FOREVER * 1000))
            self.stop_asked = True

    def _watch_peers(self) -> None:
        """Queries the live processes until one is lost.

        Each query waits for the queries of all other live processes, so slow Python code does not count as a loss.
        """
        indices = list(range(self.count))
        try:
            incarnations = self._client.get_live_nodes(indices)
            self._hosts |= self._read_entries(_HOSTS)
            lost = [index for index in indices if index not in incarnations]
            while not lost:
                time.sleep(POLL_SECONDS)
                live = self._client.get_live_nodes(indices)
                # A process that was restarted has the same index and another incarnation.
                lost = [index for index in indices if live.get(index) != incarnations[index]]
        except Exception:
            lost = [0]
        self.stop_without(lost)

    def stop_without(self, lost: list[int]) -> NoReturn:
        """Ends all processes, because some are lost; the line names them and says from where the run goes on."""
        step, _ = self.position()
        since = "" if step is None else f" since step {step}"
        verb = "does" if len(lost) == 1 else "do"
        line = f"{self._names(lost)} {verb} not respond{since}: {self.ending()}"
        self.stop(line, 1, lost=tuple(lost))


def _accepts_connections(address: str) -> bool:
    """Whether a server listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        return False
    return True
