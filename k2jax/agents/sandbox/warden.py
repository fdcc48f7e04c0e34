"""Ends what a spawner leaves that is killed itself, also where the program that it served is killed with it.

A command is bound to its spawner's life a moment after it begins; until then it does not notice that its spawner has
ended, and waits for ever or runs to its end. So a spawner begins with a small process that is nobody's child, waits for
the spawner's end and then looks for such commands.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
import select
import signal
import time

from k2jax.agents.sandbox import cgroup

_PATIENCE = 20.0
"""How long what a spawner has left may take to end [s]."""
_QUIET = 0.5
"""Time in which nothing of a dead spawner shows, after which there is nothing: a process that is becoming another
program has no command line for a moment [s]."""


def start_warden(folder: str) -> None:
    """Starts the warden of this process, which has a single thread and has started nothing yet.

    Args:
        folder: of the sandboxes, whose name stands in the command lines of all that this process starts; the warden
            deletes it.
    """
    spawner = os.getpid()
    ended = os.pidfd_open(spawner)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):  # nothing of the spawner's program goes on in these processes
            if os.fork() == 0:
                _keep(spawner, ended, folder)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(ended)


def _keep(spawner: int, ended: int, folder: str) -> None:
    os.setsid()
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor != ended:  # whoever holds the spawner's connection keeps it open
            with contextlib.suppress(OSError):
                os.close(descriptor)
    select.select([ended], [], [])
    end_marked(os.path.basename(folder).encode())
    cgroup.remove_left_over(f"{spawner}-", _PATIENCE)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def end_marked(mark: bytes) -> None:
    """Kills processes with a mark in their command lines, until none shows for a while."""
    now = time.monotonic()
    end, quiet = now + _PATIENCE, now + _QUIET
    while time.monotonic() < min(end, quiet):
        for pid in marked(mark):
            quiet = time.monotonic() + _QUIET
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_QUIET / 20)


def marked(mark: bytes) -> list[int]:
    """Other processes with a mark in their command lines."""
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has just ended
            if mark in Path("/proc", name, "cmdline").read_bytes() and int(name) != os.getpid():
                pids.append(int(name))
    return pids
