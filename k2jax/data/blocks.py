"""Checksums of a file's blocks: of a file that is written piece by piece, and of one that is read at random places."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
import functools
from pathlib import Path
import zlib

import numpy as np

from k2jax.data.cache import damaged, unreadable
from k2jax.data.disk_files import DISK, Files

# The first read of a row hashes whole blocks: for 8 KiB at a random place, blocks of 64 KiB cost twice the time of
# blocks of 16 KiB and read four times the bytes from a cold disk. The checksums are 1/4096 of the data. Another size
# needs another FORMAT of the manifest.
BLOCK = 16 * 2**10  # [bytes]
BLOCKS = "blocks.npy"  # the file that holds the checksums of a split's token files
READ_AGAIN = 4  # times that what a store sent is compared with its checksum
READ_AT_ONCE = 256 * BLOCK  # of a whole file: little memory, and few calls [bytes]


class BlockSums:
    """Checksums of a file that is written piece by piece.

    Attributes:
        values: CRC-32 of every block so far; the last block may still grow.
    """

    def __init__(self, block: int = BLOCK):
        """Sums of blocks of so many bytes."""
        self.values = array("I")
        self._block, self._filled = block, 0  # bytes of the last block

    def add(self, data: bytes) -> None:
        """Continues the file by some bytes."""
        rest = memoryview(data)
        while rest:
            if not self._filled:
                self.values.append(0)
            piece = rest[: self._block - self._filled]
            self.values[-1] = zlib.crc32(piece, self.values[-1])
            self._filled, rest = (self._filled + len(piece)) % self._block, rest[len(piece) :]


def block_count(size: int, block: int = BLOCK) -> int:
    """Number of blocks of a file of ``size`` bytes."""
    return -(-size // block)


class BlockFile:
    """A file that is read at random places; each of its blocks is compared with its checksum when it is first read.

    Several threads may read at once: at worst each of them checks the same block.

    Attributes:
        size: its length [bytes].
    """

    def __init__(
        self,
        path: Path,
        size: int,
        sums: Sequence[int] | np.ndarray,
        folder: Path,
        *,
        block: int = BLOCK,
        files: Files = DISK,
    ):
        """Opens a file.

        Args:
            path: the file.
            size: its length [bytes].
            sums: uint32 ``[block_count(size, block)]``, CRC-32 of its blocks; slices of it are read on demand.
            folder: folder of the cache that holds it, for messages.
            block: bytes of a block.
            files: where it is.

        Raises:
            UserError: it is missing, or of another length.
        """
        self._path, self.size, self._sums, self._folder = path, size, sums, folder
        self._block, self._files = block, files
        self._checked = bytearray(block_count(size, block))
        try:
            self._file = files.open(path)
        except OSError as error:
            raise unreadable(path, error, folder) from None
        if self._file.size != size:
            raise damaged(path, f"{self._file.size} bytes long instead of {size}", folder)

    def __reduce__(self) -> tuple:
        """Another process opens the file again."""
        options = {"block": self._block, "files": self._files}
        return functools.partial(BlockFile, **options), (self._path, self.size, self._sums, self._folder)

    def read(self, start: int, stop: int) -> memoryview:
        """Returns the bytes ``start`` to ``stop``, which lie inside the file.

        Raises:
            UserError: the file is truncated or altered, or its disk fails.
        """
        size = self._block
        first, last = start // size, block_count(stop, size)
        if self._checked.find(0, first, last) < 0:
            return self._read(start, stop)
        begin, end = first * size, min(last * size, self.size)
        data, sums = self._read(begin, end), self._sums[first:last]
        tried = Counter()
        while (wrong := self._first_wrong(first, data, sums)) is not None:
            tried[wrong] += 1
            at, stop = wrong * size, min((wrong + 1) * size, self.size)
            if not self._file.forget(at, stop) or tried[wrong] == READ_AGAIN:
                where = f"bytes {at} to {stop}"
                raise damaged(self._path, f"altered ({where} do not have their checksum)", self._folder)
            data = self._read(begin, end)
        self._checked[first:last] = bytes([True]) * (last - first)
        return data[start - begin : stop - begin]

    def fill(self, start: int, stop: int) -> int:
        """Has near what ``read`` takes, unchecked; returns how many pieces were fetched for that.

        Raises:
            UserError: the store or its disk fails.
        """
        first, last = start // self._block, block_count(stop, self._block)
        fetched = self._file.fill(first * self._block, min(last * self._block, self.size))
        if fetched:
            _ = self._sums[first:last]
        return fetched

    def _first_wrong(self, first: int, data: memoryview, sums: Sequence[int] | np.ndarray) -> int | None:
        """The first block that was not checked yet and has not its checksum."""
        for number, expected in enumerate(sums):
            at = number * self._block
            if not self._checked[first + number] and zlib.crc32(data[at : at + self._block]) != expected:
                return first + number
        return None

    def check(self) -> None:
        """Reads every block; raises UserError as ``read`` does."""
        for start in range(0, self.size, READ_AT_ONCE):
            self.read(start, min(start + READ_AT_ONCE, self.size))

    def _read(self, start: int, stop: int) -> memoryview:
        try:
            data = self._file.read(start, stop)
        except OSError as error:
            raise unreadable(self._path, error, self._folder) from None
        if len(data) < stop - start:
            raise damaged(self._path, f"truncated since it was opened, when it had {self.size} bytes", self._folder)
        return memoryview(data)
