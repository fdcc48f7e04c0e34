"""What a version consists of: pieces of arrays, the spans of them that a receiver wants, and the chunks that travel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import hashlib
import json
import math
import struct
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from k2jax.errors import UserError, abbreviate
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.inference.weights import Name

CHUNK = 4 << 20
"""Bytes of a chunk."""
LARGEST_CHUNK = 16 << 20
MOST_BYTES = 1 << 44
"""Bytes of a piece at most."""
_LONGEST_NAME = 200
_MOST_AXES = 8
_DTYPES = (
    *("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2", "bool"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
)
CHUNK_RECORD = struct.Struct("!8sIQQ")
"""A chunk's record: tag of the version, number of the piece, place in it, checksum of its span up to its own end."""
BEAT = 0xFFFFFFFF
"""In place of a piece: nothing came yet, and the sender is there."""
END = 0xFFFFFFFE
"""In place of a piece: everything was sent."""
BROKEN = 0xFFFFFFFD
"""In place of a piece: the sender has no more of the version; the payload says why."""

Span = tuple[int, int, int]
"""Number of a piece, and the first byte of it that is wanted and the one behind the last."""


class Piece(NamedTuple):
    """An array, or a block of one that lies on several devices.

    Attributes:
        name: of the weight or of its layer.
        dtype: its name.
        shape: of the piece.
        start: place of its first element in the array.
        of: shape of the array.
    """

    name: Name
    dtype: str
    shape: tuple[int, ...]
    start: tuple[int, ...]
    of: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the piece."""
        return math.prod(self.shape) * jnp.dtype(self.dtype).itemsize

    @property
    def rows(self) -> int:
        """Number of its parts along the first axis."""
        return self.shape[0] if self.shape else 1

    @classmethod
    def of_entry(cls, entry: Any) -> Piece:
        """A piece from a manifest, of a store or of another machine, which may say anything.

        Raises:
            ValueError: it is none.
        """
        name, dtype = entry["name"], entry["dtype"]
        whole = name if isinstance(name, str) else name[0]
        is_name = isinstance(name, str) or (len(name) == 2 and type(name[1]) is int)
        if not is_name or not isinstance(whole, str) or len(whole) > _LONGEST_NAME:
            raise ValueError(f"{abbreviate(name)} is no name")
        if dtype not in _DTYPES:
            raise ValueError(f"{abbreviate(dtype)} is no dtype of weights")
        shape, of = _sizes(entry["shape"]), _sizes(entry.get("of", entry["shape"]))
        start = _sizes(entry.get("start", [0] * len(of)))
        inside = [first + size <= most for first, size, most in zip(start, shape, of, strict=True)]
        piece = cls(name if isinstance(name, str) else (whole, name[1]), dtype, shape, start, of)
        if not all(inside) or piece.bytes > MOST_BYTES:
            raise ValueError(f"{abbreviate(name)} has no possible shape")
        return piece

    def entry(self) -> dict[str, Any]:
        """The inverse of ``of_entry``."""
        place = (
            {} if self.start == (0,) * len(self.of) and self.shape == self.of else {"start": self.start, "of": self.of}
        )
        return {"name": self.name, "dtype": self.dtype, "shape": self.shape, **place}


def _sizes(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list | tuple) or len(values) > _MOST_AXES:
        raise ValueError(f"{abbreviate(values)} is no shape")
    if not all(type(value) is int and 0 <= value < MOST_BYTES for value in values):
        raise ValueError(f"{abbreviate(values)} is no shape")
    return tuple(values)


class Manifest(NamedTuple):
    """What a version consists of; it comes before its first chunk.

    Attributes:
        identity: tells it from others: a run that is resumed publishes the same numbers again.
        version: number of the weights.
        pieces: in the order in which they are sent.
        chunk: bytes of a chunk.
    """

    identity: str
    version: int
    pieces: tuple[Piece, ...]
    chunk: int = CHUNK

    @property
    def tag(self) -> bytes:
        """Stands in every chunk."""
        return hashlib.sha256(self.identity.encode()).digest()[:8]

    @property
    def whole(self) -> tuple[Span, ...]:
        """The spans of everything."""
        return tuple((number, 0, piece.bytes) for number, piece in enumerate(self.pieces) if piece.bytes)

    def dump(self) -> bytes:
        """As JSON."""
        pieces = [piece.entry() for piece in self.pieces]
        values = {"identity": self.identity, "version": self.version, "chunk": self.chunk, "pieces": pieces}
        return json.dumps(values).encode()

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """Reads what another machine has sent.

        Raises:
            UserError: it is no manifest.
        """
        try:
            values = parse_bounded_json(data)
            pieces = tuple(map(Piece.of_entry, values["pieces"]))
            manifest = cls(values["identity"], values["version"], pieces, values["chunk"])
            if type(manifest.chunk) is not int or not 0 < manifest.chunk <= LARGEST_CHUNK:
                raise ValueError(f"chunks of {abbreviate(manifest.chunk)} bytes")
            if not isinstance(manifest.identity, str) or type(manifest.version) is not int:
                raise ValueError("no version")
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise UserError(f"what came in place of a manifest of weights is none: {abbreviate(str(error))}") from None
        return manifest

    def check(self, spans: Any) -> tuple[Span, ...]:
        """The spans that another machine wants; they ascend.

        Raises:
            ValueError: they are none of this version's.
        """
        last, checked = (0, 0), []
        for number, begin, end in spans:
            if not all(type(value) is int for value in (number, begin, end)):
                raise ValueError("spans that are no numbers")
            if (number, begin) < last or number >= len(self.pieces) or not begin < end <= self.pieces[number].bytes:
                raise ValueError(f"span {abbreviate([number, begin, end])} is not of the version")
            last = (number, end)
            checked.append((number, begin, end))
        return tuple(checked)


def digest(spans: Sequence[Span]) -> str:
    """A short name of what a receiver wants; those who want the same form a chain."""
    return hashlib.sha256(json.dumps(spans).encode()).hexdigest()[:32]


class StreamPlace(NamedTuple):
    """How far a stream is.

    Attributes:
        span: number of the one under way.
        offset: bytes of it that are there.
    """

    span: int = 0
    offset: int = 0


class Coming(NamedTuple):
    """A chunk that is to come.

    Attributes:
        piece: number of its piece.
        offset: its place in the piece.
        bytes: of it.
        after: how far the stream is with it.
    """

    piece: int
    offset: int
    bytes: int
    after: StreamPlace


def coming(spans: Sequence[Span], chunk: int, at: StreamPlace) -> Coming | None:
    """The next chunk of a stream; None at its end."""
    if at.span == len(spans):
        return None
    piece, begin, end = spans[at.span]
    count = min(chunk, end - begin - at.offset)
    done = begin + at.offset + count == end
    after = StreamPlace(at.span + 1) if done else StreamPlace(at.span, at.offset + count)
    return Coming(piece, begin + at.offset, count, after)


def row_spans(pieces: Sequence[Piece], wanted: dict[int, list[tuple[int, int]]]) -> tuple[Span, ...]:
    """Spans of rows of pieces, in order, joined where they touch.

    Args:
        pieces: of a manifest.
        wanted: first row and the one behind the last, in any order, by the number of the piece.
    """
    spans = []
    for number in sorted(wanted):
        row = pieces[number].bytes // max(1, pieces[number].rows)
        spans += [(number, first * row, last * row) for first, last in joined(wanted[number]) if first < last and row]
    return tuple(spans)


def joined(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges in order, those joined that touch or overlap."""
    begin = end = None
    for first, last in sorted(ranges):
        if begin is not None and first <= end:
            end = max(end, last)
            continue
        if begin is not None:
            yield begin, end
        begin, end = first, last
    if begin is not None:
        yield begin, end


def as_bytes(array: np.ndarray) -> memoryview:
    """The memory of an array that lies in one block."""
    return memoryview(array.reshape(-1).view(np.uint8))
