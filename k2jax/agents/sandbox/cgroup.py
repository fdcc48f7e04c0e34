"""Control groups: the memory and the number of processes of everything in a sandbox together, on versions 1 and 2.

A machine mounts the two controllers in one tree (version 2) or in a tree each (version 1). Groups are made below this
process's own group, or below the nearest group above it that this user may divide.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
import signal
import time
from typing import NamedTuple

PREFIX = "k2jax-"
_FILES = {1: {"memory": "memory.limit_in_bytes", "pids": "pids.max"}, 2: {"memory": "memory.max", "pids": "pids.max"}}
_SWAP = {1: "memory.memsw.limit_in_bytes", 2: "memory.swap.max"}
_KILLS = {1: "memory.oom_control", 2: "memory.events"}


class Tree(NamedTuple):
    """Where groups with one controller can be made.

    Attributes:
        version: 1 or 2.
        folder: the group that is divided.
    """

    version: int
    folder: Path


def find() -> dict[str, Tree]:
    """The trees in which this process can make groups, by controller: ``memory``, ``pids``, both or none."""
    own = {}
    for line in _lines("/proc/self/cgroup"):
        _, names, path = line.split(":", 2)
        own |= {name: path for name in names.split(",")}
    trees = {}
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        root, mountpoint = before.split()[3:5]
        kind, _, options = after.split()[:3]
        names = [""] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []
        for name in {"", "memory", "pids"}.intersection(names, own):
            inside = os.path.relpath(own[name], root)
            start = Path(mountpoint, "" if inside.startswith("..") else inside)
            for controller in (name,) if name else ("memory", "pids"):
                folder = _divisible(start, Path(mountpoint), _FILES[1 if name else 2][controller])
                if folder is not None:
                    trees[controller] = Tree(1 if name else 2, folder)
    return trees


def hold(trees: dict[str, Tree]) -> dict[str, Tree]:
    """The same trees by descriptors of this process, which go on when nothing is mounted at their paths any more."""
    folders = {tree.folder for tree in trees.values()}
    held = {folder: os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for folder in folders}
    return {name: tree._replace(folder=Path(f"/proc/self/fd/{held[tree.folder]}")) for name, tree in trees.items()}


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _divisible(start: Path, top: Path, limit: str) -> Path | None:
    """The nearest group, upwards from ``start``, whose new subgroups have the file ``limit`` and take processes."""
    for folder in (start, *start.parents):
        probe = folder / f"{PREFIX}{os.getpid()}-probe"
        try:
            probe.mkdir()
        except OSError:
            pass
        else:
            usable = os.access(probe / limit, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
            probe.rmdir()
            if usable:
                return folder
        if folder == top:
            return None
    return None


class ControlGroup:
    """The groups of one sandbox: one folder on version 2, one for each controller on version 1.

    Args:
        trees: see ``find``.
        name: what the folders are called, after ``k2jax-``.
        memory: bytes.
        processes: processes and threads.

    Raises:
        OSError: they cannot be made.

    Attributes:
        controllers: those that limit it.
        memory: most bytes.
        processes: most processes and threads.
    """

    def __init__(self, trees: dict[str, Tree], name: str, *, memory: int, processes: int):
        self.controllers = frozenset(trees)
        self.memory, self.processes = memory, processes
        self._folders: dict[Path, int] = {}
        limits = {"memory": memory, "pids": processes}
        try:
            for controller, (version, tree) in trees.items():
                folder = tree / f"{PREFIX}{name}"
                folder.mkdir(exist_ok=folder in self._folders)
                self._folders[folder] = version
                (folder / _FILES[version][controller]).write_text(str(limits[controller]))
                if controller == "memory":
                    with contextlib.suppress(OSError):  # a kernel without accounting of swap
                        (folder / _SWAP[version]).write_text(str(memory if version == 1 else 0))
        except OSError:
            self.remove()
            raise

    def set_processes(self, processes: int) -> None:
        """Changes how many processes and threads there may be; raises OSError where the kernel refuses."""
        for folder, version in self._folders.items():
            if (limit := folder / _FILES[version]["pids"]).exists():
                limit.write_text(str(processes))
        self.processes = processes

    def entrances(self) -> list[int]:
        """Descriptors of ``cgroup.procs``: a process that writes 0 there enters. The caller closes them."""
        return [os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in self._folders]

    def memory_kills(self) -> int:
        """How many processes the kernel has killed because the group's memory was full."""
        for folder, version in self._folders.items():
            with contextlib.suppress(OSError):
                for line in (folder / _KILLS[version]).read_text().splitlines():
                    key, value = line.split()
                    if key == "oom_kill":
                        return int(value)
        return 0

    def kill(self) -> None:
        """Kills every process in the group."""
        for folder in self._folders:
            with contextlib.suppress(OSError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)

    def is_empty(self) -> bool:
        """Whether no process is in the groups but such as have ended and are not waited for yet."""
        try:
            return not any((folder / "cgroup.procs").read_text() for folder in self._folders)
        except OSError:
            return False

    def count(self) -> int:
        """How many processes and threads the groups count, those among them that are not waited for; -1 if unknown."""
        counts = [folder / "pids.current" for folder in self._folders if (folder / "pids.current").exists()]
        try:
            return max((int(count.read_text()) for count in counts), default=0)
        except OSError:
            return -1

    def remove(self) -> bool:
        """Deletes the groups; False where a process is still in one."""
        for folder in list(self._folders):
            try:
                folder.rmdir()
            except OSError as error:
                if error.errno == errno.EBUSY:
                    return False
            del self._folders[folder]
        return True


class GroupPool:
    """Makes control groups, and gives those of closed sandboxes to the next ones: the kernel is slow to make one.

    Args:
        trees: see ``find``.
        name: what the folders' names begin with, after ``k2jax-``.
    """

    _KEPT = 32
    """Most groups that wait for a sandbox."""

    def __init__(self, trees: dict[str, Tree], name: str):
        self._trees, self._name = trees, name
        self._made = 0
        self._free: dict[tuple[int, int], list[ControlGroup]] = {}

    def take(self, memory: int, processes: int) -> ControlGroup:
        """A group without processes, which the caller gives back; see ``ControlGroup``."""
        free = self._free.get((memory, processes))
        if free:
            return free.pop()
        self._made += 1
        return ControlGroup(self._trees, f"{self._name}{self._made}", memory=memory, processes=processes)

    def give_back(self, group: ControlGroup, patience: float) -> None:
        """Takes a group whose processes have ended or are about to.

        Args:
            group: of this pool.
            patience: how long its processes may take to end [s].
        """
        end = time.monotonic() + patience
        while not group.is_empty() and time.monotonic() < end:
            group.kill()
            time.sleep(0.002)
        kept = sum(map(len, self._free.values()))
        if kept < self._KEPT and group.is_empty() and group.count() == 0:
            self._free.setdefault((group.memory, group.processes), []).append(group)
            return
        while not group.remove() and time.monotonic() < end:
            time.sleep(0.002)

    def remove(self) -> None:
        """Deletes the groups that wait."""
        for group in (group for free in self._free.values() for group in free):
            group.remove()
        self._free.clear()


def remove_left_over(name: str, patience: float) -> None:
    """Deletes the groups whose names begin with ``name``, of a spawner that was killed before it could.

    Args:
        name: see ``ControlGroup``.
        patience: how long processes in them may take to end [s].
    """
    folders = [path for _, tree in find().values() for path in tree.glob(f"{PREFIX}{name}*")]
    end = time.monotonic() + patience
    while folders and time.monotonic() < end:
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        folders = [folder for folder in folders if folder.exists()]
        time.sleep(0.01 if folders else 0)
