"""Processor time of an agent's processes on this machine, so that work beside an awaited answer is seen. Linux only."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")  # of /proc, in a second
_PROC = Path("/proc")


class AgentProcesses:
    """The processes below the one whose command line holds a mark.

    A process that ends without being waited for takes its time with it.

    Args:
        mark: a text that no other command line has, such as the path of the agent's own socket.
    """

    def __init__(self, mark: str):
        self._mark, self._roots, self._most = mark.encode(), (), 0.0

    def seconds(self) -> float:
        """Processor time so far of all of them, and of those that they have waited for; it never falls [s]."""
        if not any(self._is_marked(root) for root in self._roots):
            self._roots = self._found()
        waiting, seconds, seen = list(self._roots), 0.0, set()
        while waiting:
            pid = waiting.pop()
            if pid in seen:
                continue
            seen.add(pid)
            with contextlib.suppress(OSError):  # it has just ended
                fields = _stat(pid)
                seconds += sum(map(int, fields[12:16])) / _TICKS
                waiting += _children(pid)
        self._most = max(self._most, seconds)
        return self._most

    def _found(self) -> tuple[int, ...]:
        own = os.getpid()
        return tuple(pid for name in os.listdir(_PROC) if name.isdigit() and (pid := int(name)) != own
                     and self._is_marked(pid))  # fmt: skip

    def _is_marked(self, pid: int) -> bool:
        try:
            return self._mark in (_PROC / str(pid) / "cmdline").read_bytes()
        except OSError:
            return False


def _stat(pid: int) -> list[bytes]:
    stat = (_PROC / str(pid) / "stat").read_bytes()
    return stat[stat.rindex(b")") :].split()  # the name before it may hold anything


def _children(pid: int) -> list[int]:
    """Children of all threads of a process."""
    children: list[int] = []
    for thread in (_PROC / str(pid) / "task").iterdir():
        children += map(int, (thread / "children").read_text().split())
    return children
