"""An index of a split that is read by pages: of a corpus with billions of documents it does not fit in memory.

``pages.npy`` holds the CRC-32 of every page of the indices ``offsets.npy``, ``bytes.npy`` and ``blocks.npy``, one index
after the other, and ``fences.npy`` the first offset that begins in each page of ``offsets.npy``. These two are read
whole: they are a few ten-thousandths of the indices.
"""

from __future__ import annotations

import io
from typing import overload

import numpy as np

from k2jax.data.blocks import BlockFile

PAGE = 64 * 2**10
"""Bytes of a page."""
PAGES, FENCES = "pages.npy", "fences.npy"


class MalformedArray(ValueError):
    """What is stored is not the array that was expected."""


class PagedArray:
    """A vector in a file of NumPy, read by pages, each of which is compared with its checksum when it is first read."""

    def __init__(self, file: BlockFile, dtype: type, length: int):
        """Reads the header.

        Args:
            file: with blocks of ``PAGE`` bytes.
            dtype: of the values.
            length: number of values.

        Raises:
            MalformedArray: it is of another type or length.
            UserError: its first page is damaged.
        """
        head = io.BytesIO(file.read(0, min(file.size, PAGE)))
        try:
            version = np.lib.format.read_magic(head)
            reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, fortran, stored = reader(head)
        except (ValueError, KeyError):
            raise MalformedArray("no array") from None
        self._file, self._dtype, self._begin, self._length = file, np.dtype(dtype), head.tell(), length
        whole = self._begin + length * self._dtype.itemsize == file.size
        if stored != self._dtype or shape != (length,) or fortran or not whole:
            raise MalformedArray(f"{stored} {shape}")

    def __len__(self) -> int:
        """Number of values."""
        return self._length

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> np.ndarray: ...
    def __getitem__(self, key: int | slice) -> int | np.ndarray:
        """A value, or the values of a slice without a step; raises UserError where a page is damaged."""
        if not isinstance(key, slice):
            number = range(self._length)[key]
            return int(self._values(number, number + 1)[0])
        start, stop, step = key.indices(self._length)
        if step != 1:
            raise ValueError(f"a slice of step {step} would read pages for nothing")
        return self._values(start, max(start, stop))

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        """All values in memory."""
        values = self._values(0, self._length)
        return values if dtype is None else values.astype(dtype)

    def tolist(self) -> list[int]:
        """All values."""
        return self._values(0, self._length).tolist()

    def _values(self, start: int, stop: int) -> np.ndarray:
        if start == stop:
            return np.zeros(0, self._dtype)
        size = self._dtype.itemsize
        return np.frombuffer(self._file.read(self._begin + start * size, self._begin + stop * size), self._dtype)


class ArrayPart:
    """Consecutive values of an array, which are read with slices."""

    def __init__(self, array: PagedArray, start: int):
        """The values from ``start`` on."""
        self._array, self._start = array, start

    def __getitem__(self, key: slice) -> np.ndarray:
        """The values of a slice with both ends and no step."""
        return self._array[self._start + key.start : self._start + key.stop]


class Offsets(PagedArray):
    """Where documents begin, with what finds one by a place in the stream in one read.

    Args:
        file: see ``PagedArray``.
        length: number of values.
        fences: int64 ``[pages]``, see ``fence_numbers``.
    """

    def __init__(self, file: BlockFile, length: int, fences: np.ndarray):
        super().__init__(file, np.int64, length)
        self._fences, self._numbers = fences, fence_numbers(file.size, length)
        if len(fences) != len(self._numbers):
            raise MalformedArray(f"{len(fences)} fences")

    def between(self, start: int, stop: int) -> np.ndarray:
        """The offsets in the open range of ``start`` and ``stop``, int64."""
        first = int(np.searchsorted(self._fences, start, side="right")) - 1
        last = int(np.searchsorted(self._fences, stop, side="left"))
        end = self._length if last == len(self._numbers) else int(self._numbers[last])
        values = self[int(self._numbers[first]) : end]
        return values[np.searchsorted(values, start, side="right") : np.searchsorted(values, stop, side="left")]


def fence_numbers(size: int, length: int) -> np.ndarray:
    """The number of the first offset that begins in each page, int64 ``[pages]``.

    Args:
        size: of the file of offsets [bytes].
        length: number of offsets.
    """
    begin, width = size - 8 * length, 8
    return np.maximum(np.arange(0, size, PAGE) - begin, 0) // width
