"""Reads a GGUF file, version 2 or 3: metadata, and tensors that stay quantised until their rows are asked for.

The format is described in ggml's docs/gguf.md. The gguf package reads it as well, but makes several NumPy arrays of
every entry of the vocabulary, which takes seconds; its dequantisation is used here.
"""

from __future__ import annotations

import functools
import math
import operator
from pathlib import Path
import struct
from typing import Any, NamedTuple

import numpy as np

from k2jax.errors import UserError, abbreviate

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LARGEST_ALIGNMENT, _MOST_AXES, _DEEPEST = 1 << 20, 4, 8
_LENGTH = struct.Struct("<Q")
_CHUNK_BYTES = 1 << 18
"""Quantised bytes that are dequantised at a time, so that the intermediate results stay in a processor's cache."""


class GgufTensor(NamedTuple):
    """A tensor of a GGUF file, dequantised to float32 when rows of it are read.

    Attributes:
        shape: sizes, slowest axis first (GGUF lists them the other way).
        kind: number of the format of its blocks, ``gguf.GGMLQuantizationType``.
        data: uint8 ``[rows, bytes of a row]``, mapped from the file.
        order: index of the stored row for each row; None where the order is the same.
    """

    shape: tuple[int, ...]
    kind: int
    data: np.ndarray
    order: np.ndarray | None = None

    @property
    def dtype(self) -> np.dtype:
        """float32."""
        return np.dtype(np.float32)

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Reads rows ``start`` to ``stop``."""
        chosen = self.data[slice(start, stop) if self.order is None else self.order[start:stop]]
        rows = np.empty((len(chosen), self.shape[-1]), np.float32)
        step = max(1, _CHUNK_BYTES // self.data.shape[1])
        for first in range(0, len(rows), step):
            rows[first : first + step] = _dequantized(chosen[first : first + step], self.kind)
        return rows.reshape(-1, *self.shape[1:])


class GgufFile(NamedTuple):
    """What a GGUF file holds.

    Attributes:
        path: of the file.
        metadata: values by key: numbers, strings and lists of them.
        tensors: by name.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Reads the metadata and the places of the tensors.

    Raises:
        UserError: it is no GGUF file of a known version, or it is cut off.
    """
    try:
        if not path.is_file():
            raise ValueError("there is no such regular file")
        return _read(path, np.memmap(path, np.uint8, "r"))
    except (struct.error, ValueError, KeyError, OverflowError, OSError) as error:
        raise UserError(f"{path} is not a whole GGUF file of version 2 or 3 ({error}); fetch it again") from None


def _read(path: Path, mapped: np.ndarray) -> GgufFile:
    cursor = _Cursor(memoryview(mapped))
    magic, version = bytes(cursor.take(4)), cursor.scalar("I")
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"it begins with {magic!r}, version {version}")
    count, pairs = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {}
    for _ in range(pairs):
        [key] = cursor.strings(1)
        metadata[key] = cursor.value(cursor.scalar("I"))
    places = [
        (cursor.strings(1)[0], cursor.scalars("Q", cursor.scalar("I"))[::-1], cursor.scalar("I"), cursor.scalar("Q"))
        for _ in range(count)
    ]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= _LARGEST_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(f"general.alignment is {abbreviate(alignment)}")
    start = -(-cursor.at // alignment) * alignment
    return GgufFile(path, metadata, _tensors(mapped[start:], places, alignment))


def _tensors(data: np.ndarray, places: list[tuple[str, tuple[int, ...], int, int]], step: int) -> dict[str, GgufTensor]:
    """Tensors by name, whose places must be multiples of ``step``, lie in the file and not overlap."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    tensors, end = {}, 0
    for name, shape, kind, offset in sorted(places, key=operator.itemgetter(3)):
        if not _is_readable(kind):
            raise ValueError(f"{abbreviate(name)} is of the kind {kind}, which is not read")
        if not 1 <= len(shape) <= _MOST_AXES or min(shape) < 1 or name in tensors:
            raise ValueError(f"{abbreviate(name)} has the shape {abbreviate(shape)}, or is there twice")
        elements, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]  # of a block
        rows, width = math.prod(shape[:-1]), shape[-1] // elements * size
        if shape[-1] % elements or offset % step or offset < end or offset + rows * width > len(data):
            raise ValueError(f"{abbreviate(name)} is cut off, overlaps another tensor or does not divide into blocks")
        end = offset + rows * width
        tensors[name] = GgufTensor(shape, kind, data[offset:end].reshape(rows, width))
    return tensors


@functools.cache
def _is_readable(kind: int) -> bool:
    """Whether the gguf package dequantises a format of blocks."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    if kind not in iter(GGMLQuantizationType):
        return False
    try:
        _dequantized(np.zeros((1, GGML_QUANT_SIZES[GGMLQuantizationType(kind)][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _dequantized(rows: np.ndarray, kind: int) -> np.ndarray:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    # As one long row: gguf computes 16 rows at a time, and short rows take it longer.
    return dequantize(rows.reshape(1, -1), GGMLQuantizationType(kind)).reshape(len(rows), -1)


class _Cursor:
    """A position in a file's bytes that every reading moves on."""

    def __init__(self, buffer: memoryview):
        self._buffer, self.at = buffer, 0

    def take(self, size: int) -> memoryview:
        """The next bytes."""
        part = self._buffer[self.at : self.at + size]
        if len(part) < size:
            raise ValueError("it is cut off")
        self.at += size
        return part

    def scalars(self, code: str, count: int) -> tuple[Any, ...]:
        """The next little-endian numbers of a kind of ``struct``."""
        return struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(f"<{code}")))

    def scalar(self, code: str) -> Any:
        """The next number."""
        return self.scalars(code, 1)[0]

    def strings(self, count: int) -> list[str]:
        """The next strings; a vocabulary has a hundred thousand of them, so each costs little."""
        found, at, buffer = [], self.at, self._buffer
        for _ in range(count):
            start = at + 8
            at = start + _LENGTH.unpack_from(buffer, at)[0]
            found.append(str(buffer[start:at], "utf-8"))
        if at > len(buffer):
            raise ValueError("it is cut off")
        self.at = at
        return found

    def value(self, kind: int, depth: int = 0) -> Any:
        """The next value of a kind of GGUF; lists lie at most ``_DEEPEST`` deep in each other."""
        if kind == _STRING:
            return self.strings(1)[0]
        if kind != _ARRAY:
            if kind not in _SCALARS:
                raise ValueError(f"it has a value of the unknown kind {kind}")
            return self.scalar(_SCALARS[kind])
        inner, count = self.scalar("I"), self.scalar("Q")
        if inner in _SCALARS:
            return list(self.scalars(_SCALARS[inner], count))
        if inner == _STRING:
            return self.strings(count)
        if inner != _ARRAY or depth == _DEEPEST or count > len(self._buffer) - self.at:
            raise ValueError(f"it has a list of the kind {inner}, or too many of them")
        return [self.value(inner, depth + 1) for _ in range(count)]
