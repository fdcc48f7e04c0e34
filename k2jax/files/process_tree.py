"""Processes below this one: found, counted and killed, whatever they have done to get away. Linux only."""

from __future__ import annotations

from collections import defaultdict
import contextlib
import ctypes
import os
import signal
import time
from typing import NamedTuple

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_TICKS = os.sysconf("SC_CLK_TCK")  # of /proc, in a second
_libc = ctypes.CDLL(None, use_errno=True)


class Activity(NamedTuple):
    """What a process does.

    Attributes:
        seconds: processor time of it and of its children that it has waited for [s].
        state: the letter of /proc, such as ``R`` where it is ready to run or runs.
    """

    seconds: float
    state: str


def adopt_orphans() -> None:
    """From now on a descendant whose parent ends becomes a child of this process: none can leave the tree."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """From now on the end of the thread that has started this process kills it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def descendants(pid: int | None = None) -> dict[int, Activity]:
    """All processes below one, by default this one, by their ids, zombies included, found by a pass over /proc."""
    children: dict[int, list[int]] = defaultdict(list)
    activities: dict[int, Activity] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                parent, activities[int(name)] = _looked_at(name)
                children[parent].append(int(name))
    found, waiting = {}, [os.getpid() if pid is None else pid]
    while waiting:
        below = children[waiting.pop()]
        found |= {pid: activities[pid] for pid in below}
        waiting += below
    return found


def glance() -> dict[int, Activity]:
    """``descendants`` of this process, without a pass over /proc where they are one child that has none itself.

    The kernel's list of children may miss one in the moment in which another ends: this counts time, and kills nobody.
    """
    try:
        [child] = _children(os.getpid())
        if not _children(child):
            return {child: _looked_at(child)[1]}
    except (OSError, ValueError):  # it has just ended, there are none or several, or the kernel has no such lists
        pass
    return descendants()


def _children(pid: int) -> list[int]:
    tasks = f"/proc/{pid}/task"
    return [int(child) for task in os.listdir(tasks) for child in _read(f"{tasks}/{task}/children").split()]


def _looked_at(pid: int | str) -> tuple[int, Activity]:
    """The parent of a process, and what it does."""
    stat = _read(f"/proc/{pid}/stat")
    fields = stat[stat.rindex(b")") :].split()  # the name before it may hold anything
    return int(fields[2]), Activity(sum(map(int, fields[12:16])) / _TICKS, fields[1].decode())


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def has_children() -> bool:
    """Whether any process that this one or its adopted orphans have started is left; ended ones are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def kill_descendants() -> None:
    """Kills all processes below this one and returns when none is left.

    They are stopped before they are killed, so that what forks all the time cannot stay ahead.
    """
    stopped: set[int] = set()
    while new := set(descendants()) - stopped:
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        stopped |= new
    while has_children():  # all descendants are below a child
        left = descendants()
        if left and not any([_signal(pid, signal.SIGKILL) for pid in left]):
            return  # they have become another user's, whom this one cannot kill
        time.sleep(0.001)


def _signal(pid: int, number: int) -> bool:
    """Sends a signal; whether this process may do so."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
