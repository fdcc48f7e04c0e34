"""What of a version a process needs, from which of its sources, and how arrays become of it."""

from __future__ import annotations

from collections.abc import Iterator
import graphlib
import itertools
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from k2jax.errors import UserError, abbreviate
from k2jax.inference.weights import EngineWeights, Name
from k2jax.rl.broadcast.pieces import Coming, Manifest, Piece, Span, as_bytes, joined, row_spans

Box = tuple[tuple[int, int], ...]
"""First index and the one behind the last, for every axis."""
Stream = Iterator[tuple[Coming, memoryview]]


class SharePart(NamedTuple):
    """Rows of a piece that an array needs.

    Attributes:
        source: number of it.
        piece: number in that source's manifest.
        box: of the piece.
        rows: first and the one behind the last, in order.
    """

    source: int
    piece: int
    box: Box
    rows: tuple[tuple[int, int], ...]


class ArrayPlan(NamedTuple):
    """An array that is to come.

    Attributes:
        name: of the weight or layer.
        dtype: in which it comes.
        shape: of all of it.
        boxes: what this process needs of it.
        parts: what those are made of.
    """

    name: Name
    dtype: np.dtype
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    parts: tuple[SharePart, ...]


class SharePlan(NamedTuple):
    """What is taken from each source, and what it becomes.

    Attributes:
        arrays: in the order in which they come.
        spans: for each source.
    """

    arrays: tuple[ArrayPlan, ...]
    spans: tuple[tuple[Span, ...], ...]


def plan_of(manifests: list[Manifest], weights: EngineWeights) -> SharePlan:
    """Chooses for every block of every array one of the sources that have it.

    Args:
        manifests: of the sources, which are not trusted.
        weights: of the engine.

    Raises:
        UserError: together they are not the weights of the engine's model.
    """
    found: dict[Name, list[tuple[int, int, Piece]]] = {}
    for source, manifest in enumerate(manifests):
        for number, piece in enumerate(manifest.pieces):
            found.setdefault(piece.name, []).append((source, number, piece))
    for name, pieces in found.items():
        if len({(piece.of, piece.dtype) for _, _, piece in pieces}) > 1:
            raise UserError(f"the sources of the weights do not agree on {abbreviate(name)}; they are of one run")
    whole = [(name, np.broadcast_to(np.int8(0), pieces[0][2].of)) for name, pieces in found.items()]
    weights.check(whole)
    load = [0] * len(manifests)
    arrays, wanted = [], [{} for _ in manifests]
    for name in _in_order(manifests):
        array = _planned(name, found[name], weights, load)
        for part in array.parts:
            wanted[part.source][part.piece] = list(part.rows)
        arrays.append(array)
    spans = tuple(row_spans(manifest.pieces, rows) for manifest, rows in zip(manifests, wanted, strict=True))
    return SharePlan(tuple(arrays), spans)


def _in_order(manifests: list[Manifest]) -> Iterator[Name]:
    """All names, in the order in which every source sends those that it has."""
    order: graphlib.TopologicalSorter[Name] = graphlib.TopologicalSorter()
    for manifest in manifests:
        names = [name for name, _ in itertools.groupby(manifest.pieces, lambda piece: piece.name)]
        for before, name in itertools.pairwise([None, *names]):
            order.add(name, *([] if before is None else [before]))
    try:
        yield from order.static_order()
    except graphlib.CycleError:
        raise UserError(
            "the sources of the weights do not have them in one order; name the addresses of one run"
        ) from None


def _planned(name: Name, pieces: list[tuple[int, int, Piece]], weights: EngineWeights, load: list[int]) -> ArrayPlan:
    shape, dtype = pieces[0][2].of, jnp.dtype(pieces[0][2].dtype)
    by_box: dict[Box, list[tuple[int, int, Piece]]] = {}
    for entry in pieces:
        by_box.setdefault(_box(entry[2]), []).append(entry)
    _check_tiles(name, list(by_box), shape)
    boxes, parts = _needed(name, shape, weights), []
    for box, holders in by_box.items():
        common = [overlap for needed in boxes if (overlap := _overlap(box, needed)) is not None]
        if not common and math.prod(shape):
            continue
        source, number, piece = min(holders, key=lambda entry: load[entry[0]])
        first = box[0][0] if box else 0
        rows = joined([(part[0][0] - first, part[0][1] - first) if part else (0, 1) for part in common])
        load[source] += piece.bytes
        parts.append(SharePart(source, number, box, tuple(rows)))
    return ArrayPlan(name, dtype, shape, boxes, tuple(sorted(parts)))


def _needed(name: Name, shape: tuple[int, ...], weights: EngineWeights) -> tuple[Box, ...]:
    """The blocks of an array that this process's devices hold, once each."""
    target = weights.target(name if isinstance(name, str) else name[0])
    if target.sharding.is_fully_addressable:
        return (tuple((0, size) for size in shape),)
    if target.shape != shape:
        raise UserError(f"{abbreviate(name)} comes with all of its layers; publish the layers one by one")
    places = target.sharding.addressable_devices_indices_map(shape).values()
    return tuple(dict.fromkeys(_bounds(index, shape) for index in places))


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _box(piece: Piece) -> Box:
    return tuple((first, first + size) for first, size in zip(piece.start, piece.shape, strict=True))


def _overlap(one: Box, other: Box) -> Box | None:
    both = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one, other, strict=True))
    return both if all(first < last for first, last in both) else None


def _check_tiles(name: Name, boxes: list[Box], shape: tuple[int, ...]) -> None:
    """Raises UserError unless the boxes are a grid that covers the shape: every element comes once."""
    sides = [sorted({box[axis] for box in boxes}) for axis in range(len(shape))]
    even = all(
        [first for first, _ in side] == [0, *(last for _, last in side[:-1])] and side[-1][1] == size
        for side, size in zip(sides, shape, strict=True)
    )
    if not even or len(boxes) != math.prod(map(len, sides)):
        raise UserError(
            f"the sources hold {len(boxes)} blocks of {abbreviate(name)}, which are not all of it; name the addresses "
            "of all processes of the run"
        )


def assembled(plan: SharePlan, streams: dict[int, Stream]) -> Iterator[tuple[ArrayPlan, dict[Box, np.ndarray]]]:
    """The blocks that this process needs of every array, in memory of their own.

    Args:
        plan: of them.
        streams: by the number of the source, of those of which something is needed.
    """
    for array in plan.arrays:
        memory = {box: np.empty([last - first for first, last in box], array.dtype) for box in array.boxes}
        for part in array.parts:
            _fill(array, part, streams, memory)
        yield array, memory
        del memory
    for stream in streams.values():
        if next(stream, None) is not None:
            raise UserError("more weights came than were asked for")


def _fill(array: ArrayPlan, part: SharePart, streams: dict[int, Stream], memory: dict[Box, np.ndarray]) -> None:
    """Copies the rows of a piece, as they come, to the blocks that they belong to."""
    for first, last in part.rows:
        box = ((part.box[0][0] + first, part.box[0][0] + last), *part.box[1:]) if part.box else ()
        whole = memory.get(box)
        rows = np.empty([end - begin for begin, end in box], array.dtype) if whole is None else whole
        if rows.nbytes:
            _read(streams[part.source], part.piece, as_bytes(rows))
        if whole is not None:
            continue
        for needed, block in memory.items():
            if (common := _overlap(box, needed)) is not None:
                block[_within(common, needed)] = rows[_within(common, box)]


def _within(box: Box, outer: Box) -> tuple[slice, ...]:
    return tuple(slice(first - low, last - low) for (first, last), (low, _) in zip(box, outer, strict=True))


def _read(stream: Stream, piece: int, memory: memoryview) -> None:
    filled = 0
    while filled < len(memory):
        place, data = next(stream)
        if place.piece != piece:
            raise UserError("weights came in another order than they were asked for")
        memory[filled : filled + place.bytes] = data
        filled += place.bytes
