"""Where the bytes of a corpus come from: files on disk, or whatever has the same two methods."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol
import weakref


class OpenedFile(Protocol):
    """A file that is read at random places, by several threads at once.

    Attributes:
        size: its length [bytes].
    """

    size: int

    def read(self, start: int, stop: int) -> bytes:
        """The bytes ``start`` to ``stop``; fewer where the file has become shorter. Raises OSError."""
        ...

    def forget(self, start: int, stop: int) -> bool:
        """Is told that these bytes are wrong; returns whether they are worth to be read again."""
        ...

    def fill(self, start: int, stop: int) -> int:
        """Has these bytes near; returns how many pieces were fetched for that. Raises UserError."""
        ...


class Files(Protocol):
    """The files of a corpus."""

    def open(self, path: Path) -> OpenedFile:
        """Opens a file; raises OSError."""
        ...

    def sizes(self, folder: Path) -> dict[str, int]:
        """The length of every file of a folder, by name [bytes]; raises OSError."""
        ...


class DiskFile:
    """A file on disk.

    It is read into memory rather than mapped: a mapped file that is truncated, or whose disk fails, ends the process.

    Attributes:
        size: its length at opening [bytes].
    """

    def __init__(self, path: Path):
        """Opens it; raises OSError."""
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor).atexit = False  # a thread may read until the very end
        self.size = os.fstat(self._descriptor).st_size

    def read(self, start: int, stop: int) -> bytes:
        """See ``OpenedFile``."""
        return os.pread(self._descriptor, stop - start, start)

    def forget(self, start: int, stop: int) -> bool:
        """See ``OpenedFile``."""
        return False

    def fill(self, start: int, stop: int) -> int:
        """See ``OpenedFile``."""
        return 0


class DiskFiles:
    """Files on disk."""

    def open(self, path: Path) -> DiskFile:
        """See ``Files``."""
        return DiskFile(path)

    def sizes(self, folder: Path) -> dict[str, int]:
        """See ``Files``."""
        with os.scandir(folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}


DISK = DiskFiles()
