"""One running command: its outputs, its time limit, and its end, at which nothing of it is left."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import errno
import json
import os
from pathlib import Path
import selectors
import signal
import time
from typing import Any, NamedTuple

from k2jax.agents.sandbox.child_process import Child
from k2jax.agents.sandbox.command_streams import CHUNK, CommandStreams
from k2jax.agents.sandbox.launcher import Launcher

_OWN_FAILURE = 255
"""Exit code of nsjail where it could not start the command."""
_MOST_STATUS = 1 << 16
"""Bytes of what the isolating program tells that are kept."""


class CommandEnd(NamedTuple):
    """How a command ended.

    Attributes:
        code: exit code, where it was not killed at its time limit.
        seconds: wall time.
        timed_out: whether it was.
        out_of_memory: whether a process of the sandbox was killed for memory.
    """

    code: int
    seconds: float
    timed_out: bool
    out_of_memory: bool

    def record(self, failure: str | None, stdout: int, truncated: bool) -> dict[str, Any]:
        """What the spawner answers.

        Args:
            failure: why it could not be run; None where it was.
            stdout: bytes of its output.
            truncated: whether an output was too long.
        """
        code = 128 + signal.SIGKILL if self.timed_out else self.code
        return self._asdict() | {
            "failure": None if self.timed_out else failure,
            "code": code,
            "stdout": stdout,
            "truncated": truncated,
        }


class RunningCommand:
    """Watches one command from the spawner's loop.

    Args:
        selector: calls the functions that are registered with it.
        child: the command; its descriptors are closed here.
        stdin: its input; empty where that is a connection.
        launcher: what has started it.
        memory_kills: says how many processes of its sandbox have been killed for memory so far.
        timeout: from now [s].
        output_limit: bytes that are kept of each output.
        release: called with the pid of the namespace's first process where the command waits for it.
        done: called once, at the end, with the record of the result and both outputs.

    Attributes:
        pids: of the isolating program and, once it is known, of the first process of the command's namespace.
        deadline: the moment of its time limit, on the monotonic clock [s].
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        child: Child,
        stdin: bytes,
        *,
        launcher: Launcher,
        memory_kills: Callable[[], int],
        timeout: float,
        output_limit: int,
        release: Callable[[int], None],
        done: Callable[[dict[str, Any], bytes], None],
    ):
        self._launcher, self._memory_kills = launcher, memory_kills
        self._selector, self._child, self._done, self._release = selector, child, done, release
        self._started = time.monotonic()
        self.deadline = self._started + timeout
        outputs = [end for end in (child.stdout, child.stderr) if end is not None]
        self._streams = CommandStreams(selector, child.stdin, outputs, data=stdin, limit=output_limit)
        self._timed_out = False
        self._status = bytearray()
        self._code = 0
        self._seconds = 0.0
        self._kills = memory_kills()
        self._outer, self._init = os.pidfd_open(child.pid), None
        self.pids = [child.pid]
        self._open = {child.status, self._outer}
        selector.register(child.status, selectors.EVENT_READ, self._on_status)
        selector.register(self._outer, selectors.EVENT_READ, self._on_exit)

    def expire(self) -> None:
        """Ends the command at its time limit."""
        self._timed_out = True
        self.kill()

    def kill(self) -> None:
        """Ends the command and everything that it has started; ``done`` follows."""
        self.deadline = float("inf")
        for pidfd in (self._init, self._outer):
            if pidfd is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def _close(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._open.remove(descriptor)
            self._selector.unregister(descriptor)
            os.close(descriptor)

    def _on_status(self) -> None:
        try:
            data = os.read(self._child.status, CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._close(self._child.status)
            return
        self._status += data[: _MOST_STATUS - len(self._status)]
        if self._init is None and (pid := self._launcher.told(bytes(self._status)).get("child-pid")):
            self._find_init(pid)

    def _find_init(self, pid: int) -> None:
        """Takes hold of the first process of the command's namespace: all others end with it."""
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(pid)
            if parent_of(pid) not in (self._child.pid, os.getpid()):  # it has ended, and its number is another's
                os.close(pidfd)
                return
            self._init = pidfd
            self.pids.append(pid)
        if self._child.block is not None:
            try:
                self._release(pid)
                os.write(self._child.block, b"1")
            except OSError as error:
                self._status += json.dumps({"error": str(error)}).encode()
                self.kill()
            os.close(self._child.block)
            self._child.block = None

    def _on_exit(self) -> None:
        _, status = os.waitpid(self._child.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._code = 128 - code if code < 0 else code
        self._seconds = time.monotonic() - self._started
        self.deadline = float("inf")
        self._close(self._outer)
        self._outer = None
        if self._child.status in self._open:
            self._on_status()
        if self._init is None:
            self._finish()
            return
        self.kill()
        self._open.add(self._init)
        self._selector.register(self._init, selectors.EVENT_READ, self._on_empty)

    def _on_empty(self) -> None:
        """The namespace has no process any more."""
        self._close(self._init)
        self._init = None
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pids[1], os.WNOHANG)
        self._finish()

    def _finish(self) -> None:
        stdout, stderr = self._streams.finish()
        for descriptor in list(self._open):
            self._close(descriptor)
        if self._child.block is not None:
            os.close(self._child.block)
        self._done(*self._result(stdout, stderr))

    def _result(self, stdout: bytes, stderr: bytes) -> tuple[dict[str, Any], bytes]:
        """The record of the result, and both outputs."""
        statuses = self._launcher.told(bytes(self._status))
        code, failure = statuses.get("exit-code", self._code), None
        if statuses.get("errno") == errno.E2BIG:  # a machine whose limit is lower than what is checked before
            code, stderr = 127, stderr or os.strerror(errno.E2BIG).encode()
        elif "error" in statuses:
            failure = statuses["error"]
        elif "exit-code" not in statuses and "started" not in statuses and (code <= 128 or code == _OWN_FAILURE):
            if stderr.startswith(self._launcher.complaints):
                code = 127
            else:
                failure = stderr.decode(errors="replace").strip() or f"it ended with code {code} before the command"
        ended = CommandEnd(code, self._seconds, self._timed_out, self._memory_kills() > self._kills)
        return ended.record(failure, len(stdout), self._streams.truncated), stdout + stderr


def parent_of(pid: int) -> int:
    """The pid of a process's parent."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])


def children() -> set[int]:
    """Processes whose parent this process is, zombies included."""
    text = Path(f"/proc/self/task/{os.getpid()}/children")
    if text.exists():
        return set(map(int, text.read_text().split()))
    own, found = os.getpid(), set()  # a kernel without that file
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if parent_of(int(name)) == own:
                found.add(int(name))
    return found
