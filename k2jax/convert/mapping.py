"""Maps a weight's ParamSpec to the Hugging Face tensors that it is made of, in blocks of rows of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from k2jax.params import ParamSpec, hf_tensors

BLOCK_ELEMENTS = 1 << 24  # largest block: 64 MiB of float32


class Block(NamedTuple):
    """Some rows of one Hugging Face tensor, and the region of the weight that they fill.

    Attributes:
        name: name of the tensor.
        start: first row.
        stop: one past the last row.
        index: of the region in the stacked weight, one entry per axis.
    """

    name: str
    start: int
    stop: int
    index: tuple[int | slice, ...]


def hf_shape(spec: ParamSpec) -> tuple[int, ...]:
    """Returns the shape of a weight's Hugging Face tensors: ``[outputs, inputs]``, or ``[outputs]`` for vectors."""
    if spec.hf_axes:
        return tuple(spec.size_of((axis,)) for axis in spec.outputs + spec.inputs)
    return (spec.part[1] * spec.size_of(spec.outputs), *((spec.size_of(spec.inputs),) if spec.inputs else ()))


def rows_per_block(spec: ParamSpec, elements: int = BLOCK_ELEMENTS) -> int:
    """Counts the indices of the weight's first output axis in one block of at most so many elements."""
    size = spec.size_of(spec.outputs[:1])
    row = spec.size_of(spec.outputs[1:] + spec.inputs)
    return max(1, min(size, elements // row))


def chunks(spec: ParamSpec) -> tuple[int, ...]:
    """Returns storage chunks that equal the blocks, so that writing one block never reads another."""
    return tuple(
        1 if axis in spec.stack else rows_per_block(spec) if axis == spec.outputs[0] else size
        for axis, size in zip(spec.axes, spec.shape, strict=True)
    )


def blocks(spec: ParamSpec, elements: int = BLOCK_ELEMENTS) -> Iterator[Block]:
    """Yields every block of a weight, each of at most so many elements."""
    first, step = spec.outputs[0], rows_per_block(spec, elements)
    size, inner = spec.size_of((first,)), spec.size_of(spec.outputs[1:])
    offset = spec.part[0] * size * inner
    for name, position in hf_tensors(spec):
        stack = dict(zip(spec.stack, position, strict=True))
        for start in range(0, size, step):
            stop = min(size, start + step)
            index = tuple(
                stack[axis] if axis in stack else slice(start, stop) if axis == first else slice(None)
                for axis in spec.axes
            )
            yield Block(name, offset + start * inner, offset + stop * inner, index)


def to_region(spec: ParamSpec, rows: np.ndarray) -> np.ndarray:
    """Reorders rows of a Hugging Face tensor into the region of the weight that they fill."""
    given, stored = _orders(spec)
    sizes = [spec.size_of((axis,)) for axis in given[1:]]
    return rows.reshape(-1, *sizes).transpose([given.index(axis) for axis in stored])


def to_rows(spec: ParamSpec, region: np.ndarray) -> np.ndarray:
    """Inverts ``to_region``."""
    given, stored = _orders(spec)
    rows = region.transpose([stored.index(axis) for axis in given])
    return rows.reshape(-1, *hf_shape(spec)[1:])


def _orders(spec: ParamSpec) -> tuple[list[str], list[str]]:
    """Returns the axes of one tensor in Hugging Face's order and in the weight's order, without stack axes."""
    given = [*spec.outputs, *spec.inputs]
    return given, [axis for axis in spec.axes if axis in given]
