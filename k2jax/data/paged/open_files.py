"""The files that a process has open: a corpus has more of them than a process may open."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
import itertools
import threading
from typing import TYPE_CHECKING
import weakref

if TYPE_CHECKING:
    from k2jax.data.blocks import BlockFile

MOST_OPEN = 256
"""Token files that a process has open; processes may often open 1,024 files in all."""


class OpenFiles:
    """Open files of all streams of a process; the least recently used one is closed when there are too many.

    A thread that reads a file which is closed here reads on: a file is closed with the last reference to it.
    """

    def __init__(self, most: int):
        """Holds at most so many files."""
        self._most, self._lock = most, threading.RLock()  # a finalizer may run while this thread holds it
        self._files: OrderedDict[tuple[int, int], BlockFile] = OrderedDict()
        self._keys = itertools.count()

    def __len__(self) -> int:
        """Number of open files."""
        return len(self._files)

    def register(self, owner: object) -> int:
        """A key for the files of an owner, which are closed with it."""
        key = next(self._keys)
        weakref.finalize(owner, self._close, key).atexit = False
        return key

    def get(self, owner: int, number: int, opened: Callable[[], BlockFile]) -> BlockFile:
        """A file of an owner, opened if it is not; raises what ``opened`` does."""
        key = owner, number
        with self._lock:
            if file := self._files.get(key):
                self._files.move_to_end(key)
                return file
        file = opened()  # without the lock: a disk may be slow
        with self._lock:
            self._files[key] = file
            while len(self._files) > self._most:
                self._files.popitem(last=False)
        return file

    def _close(self, owner: int) -> None:
        with self._lock:
            for key in [key for key in self._files if key[0] == owner]:
                del self._files[key]


OPEN = OpenFiles(MOST_OPEN)
