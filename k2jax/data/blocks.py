"""Checksums of a file's blocks: of a file that is written piece by piece, and of one that is read at random places."""

from __future__ import annotations

from array import array
import os
from pathlib import Path
import weakref
import zlib

import numpy as np

from k2jax.data.cache import damaged, unreadable

# The first read of a row hashes whole blocks: for 8 KiB at a random place, blocks of 64 KiB cost twice the time of
# blocks of 16 KiB and read four times the bytes from a cold disk. The checksums are 1/4096 of the data. Another size
# needs another FORMAT of the manifest.
BLOCK = 16 * 2**10  # [bytes]
READ_AT_ONCE = 256 * BLOCK  # of a whole file: little memory, and few calls [bytes]


class BlockSums:
    """Checksums of a file that is written piece by piece.

    Attributes:
        values: CRC-32 of every block so far; the last block may still grow.
    """

    def __init__(self):
        self.values = array("I")
        self._filled = 0  # bytes of the last block

    def add(self, data: bytes) -> None:
        """Continues the file by some bytes."""
        rest = memoryview(data)
        while rest:
            if not self._filled:
                self.values.append(0)
            piece = rest[: BLOCK - self._filled]
            self.values[-1] = zlib.crc32(piece, self.values[-1])
            self._filled, rest = (self._filled + len(piece)) % BLOCK, rest[len(piece) :]


def block_count(size: int) -> int:
    """Number of blocks of a file of ``size`` bytes."""
    return -(-size // BLOCK)


class BlockFile:
    """A file that is read at random places; each of its blocks is compared with its checksum when it is first read.

    It is read into memory rather than mapped: a mapped file that is truncated, or whose disk fails, ends the process.
    Several threads may read at once: at worst each of them checks the same block.
    """

    def __init__(self, path: Path, size: int, sums: np.ndarray, folder: Path):
        """Opens a file.

        Args:
            path: the file.
            size: its length [bytes].
            sums: uint32 ``[block_count(size)]``, CRC-32 of its blocks.
            folder: folder of the cache that holds it, for messages.

        Raises:
            UserError: it is missing, or of another length.
        """
        self._path, self._size, self._sums, self._folder = path, size, sums, folder
        self._checked = bytearray(len(sums))
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._descriptor).atexit = False  # a thread may read until the very end
            length = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise unreadable(path, error, folder) from None
        if length != size:
            raise damaged(path, f"{length} bytes long instead of {size}", folder)

    def __reduce__(self) -> tuple[type[BlockFile], tuple[Path, int, np.ndarray, Path]]:
        """Another process opens the file again."""
        return BlockFile, (self._path, self._size, self._sums, self._folder)

    def read(self, start: int, stop: int) -> memoryview:
        """Returns the bytes ``start`` to ``stop``, which lie inside the file.

        Raises:
            UserError: the file is truncated or altered, or its disk fails.
        """
        first, last = start // BLOCK, block_count(stop)
        if self._checked.find(0, first, last) < 0:
            return self._read(start, stop)
        begin = first * BLOCK
        data = self._read(begin, min(last * BLOCK, self._size))
        for block in range(first, last):
            at = block * BLOCK - begin
            if not self._checked[block] and zlib.crc32(data[at : at + BLOCK]) != self._sums[block]:
                where = f"bytes {block * BLOCK} to {min((block + 1) * BLOCK, self._size)}"
                raise damaged(self._path, f"altered ({where} do not have their checksum)", self._folder)
            self._checked[block] = True
        return data[start - begin : stop - begin]

    def check(self) -> None:
        """Reads every block; raises UserError as ``read`` does."""
        for start in range(0, self._size, READ_AT_ONCE):
            self.read(start, min(start + READ_AT_ONCE, self._size))

    def _read(self, start: int, stop: int) -> memoryview:
        try:
            data = os.pread(self._descriptor, stop - start, start)
        except OSError as error:
            raise unreadable(self._path, error, self._folder) from None
        if len(data) < stop - start:
            raise damaged(self._path, f"truncated since it was opened, when it had {self._size} bytes", self._folder)
        return memoryview(data)
