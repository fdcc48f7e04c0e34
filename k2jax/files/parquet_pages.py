"""Sizes of the pages of a Parquet file, as their own headers say, before anything is decompressed.

A few kilobytes can hold a page of gigabytes, and a reader makes room for what the header of a page says, whatever the
file's footer says about the whole column. Headers are structs of Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import mmap
from pathlib import Path
from typing import Any, NamedTuple

from k2jax.files.objects.object_path import ObjectPath
from k2jax.files.objects.object_reader import ObjectBytes

_STOP, _TRUE, _FALSE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 7, 8, 9, 10, 11, 12
_VARINTS = (4, 5, 6)
_UNCOMPRESSED, _COMPRESSED = 2, 3  # fields of a page's header
_DEEPEST = 16


class ParquetPage(NamedTuple):
    """Bytes of a page: decompressed, and in the file."""

    size: int
    stored: int


def page_sizes(path: Path | ObjectPath, group: Any, columns: Sequence[str]) -> list[ParquetPage]:
    """The pages of some columns.

    Args:
        path: the file.
        group: pyarrow's metadata of a row group.
        columns: names at the top of the schema.

    Raises:
        ValueError: a header cannot be read.
        OSError: the file cannot be read.
    """
    chunks = [group.column(number) for number in range(group.num_columns)]
    chunks = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in columns]
    if isinstance(path, ObjectPath):
        data = ObjectBytes(path)
        return [page for chunk in chunks for page in _pages(data, chunk)]
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return [page for chunk in chunks for page in _pages(data, chunk)]


def _pages(data: mmap.mmap | ObjectBytes, chunk: Any) -> Iterator[ParquetPage]:
    """The pages of a column in a row group."""
    place = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < place:
        place = chunk.dictionary_page_offset
    end = place + chunk.total_compressed_size
    if not 0 < place <= end <= len(data):
        raise ValueError("a column lies outside of the file")
    while place < end:
        header = _Thrift(data, place, end)
        sizes = header.integers()
        page = ParquetPage(sizes.get(_UNCOMPRESSED, -1), sizes.get(_COMPRESSED, -1))
        if min(page) < 0:
            raise ValueError("a page has no size")
        yield page
        place = header.place + page.stored


class _Thrift:
    """Reads one struct; everything in it but whole numbers at its top is skipped.

    Attributes:
        place: where it is now.
    """

    def __init__(self, data: mmap.mmap | ObjectBytes, place: int, end: int):
        """Begins at ``place``; nothing is read from ``end`` on."""
        self._data, self.place, self._end = data, place, end

    def integers(self) -> dict[int, int]:
        """Whole numbers by the number of their field."""
        return {number: self._integer() for number, kind in self._fields(0) if kind in _VARINTS}

    def _fields(self, depth: int) -> Iterator[tuple[int, int]]:
        """Fields of the struct that begins here: number and kind. Whole numbers at the top are left to the caller."""
        number = 0
        while (head := self._byte()) & 15 != _STOP:
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            if kind in _VARINTS and depth == 0:
                yield number, kind
            elif kind not in (_TRUE, _FALSE):
                self._skip(kind, depth)

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError("a header is nested too deeply")
        if kind in _VARINTS:
            self._varint()
        elif kind == _STRUCT:
            for _ in self._fields(depth + 1):
                pass
        elif kind in (_LIST, _SET):
            head = self._byte()
            for _ in range(head >> 4 if head >> 4 < 15 else self._varint()):
                self._skip(head & 15, depth + 1)
        elif kind == _MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            for _ in range(count):
                self._skip(kinds >> 4, depth + 1)
                self._skip(kinds & 15, depth + 1)
        else:
            self._forward({_BINARY: 0, _DOUBLE: 8}.get(kind, 1) or self._varint())

    def _forward(self, count: int) -> None:
        self.place += count
        if self.place > self._end:
            raise ValueError("a header has no end")

    def _byte(self) -> int:
        self._forward(1)
        return self._data[self.place - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number has no end")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
