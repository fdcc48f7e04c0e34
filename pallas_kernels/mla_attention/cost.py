"""FLOPs, bytes and exponentials of the Mosaic kernels, counted from what they multiply and fetch.

``visits`` is the number of pairs of blocks, over the batch: ``blocks.visited_blocks`` of a known mask, or all causal
ones, which is what a kernel tells the compiler since it has to before the exits are known. Bytes are those of the
arrays' elements: a width of 64 counts as 64, though a TPU's tiles hold it in 128.
"""

from __future__ import annotations

from typing import NamedTuple

from jax import Array
from jax.experimental import pallas as pl

FLOAT32 = 4


class AttentionShape(NamedTuple):
    """Sizes of a call; ``length`` in whole blocks."""

    batch: int
    heads: int
    length: int
    nope: int
    rope: int
    value: int
    itemsize: int

    @classmethod
    def of(cls, q_nope: Array, rope: int, v: Array) -> AttentionShape:
        """Of a call with these inputs and this width of the rope."""
        return cls(*q_nope.shape, rope, v.shape[-1], v.dtype.itemsize)


def causal_visits(shape: AttentionShape, block: int) -> int:
    """Pairs of blocks under a causal mask."""
    blocks = -(-shape.length // block)
    return shape.batch * blocks * (blocks + 1) // 2


def forward_cost(shape: AttentionShape, block: int, heads: int, visits: int | None = None) -> pl.CostEstimate:
    """Of the forward kernel, with ``heads`` heads per step."""
    written = shape.heads * (shape.value * shape.itemsize + FLOAT32)
    read = shape.heads * (shape.nope + shape.rope) * shape.itemsize
    streamed = _keys_bytes(shape, heads)
    return _cost(shape, block, visits, (shape.nope + shape.rope) + shape.value, streamed, read + written)


def query_gradients_cost(shape: AttentionShape, block: int, heads: int, visits: int | None = None) -> pl.CostEstimate:
    """Of the kernel for dq."""
    written = shape.heads * (shape.nope + shape.rope) * shape.itemsize
    streamed = _keys_bytes(shape, heads)
    width = 2 * (shape.nope + shape.rope) + shape.value
    return _cost(shape, block, visits, width, streamed, _rows_bytes(shape) + written)


def key_gradients_cost(shape: AttentionShape, block: int, heads: int, visits: int | None = None) -> pl.CostEstimate:
    """Of the kernel for dk and dv."""
    written = shape.heads * (shape.nope + shape.value) * shape.itemsize + shape.heads // heads * shape.rope * FLOAT32
    width = 2 * (shape.nope + shape.rope) + 2 * shape.value
    return _cost(shape, block, visits, width, _rows_bytes(shape), _keys_bytes(shape, heads) + written)


def _keys_bytes(shape: AttentionShape, heads: int) -> int:
    """Read per key: its parts, the value, and for each group of heads the shared key and the exit."""
    shared = shape.heads // heads * (shape.rope * shape.itemsize + FLOAT32)
    return shape.heads * (shape.nope + shape.value) * shape.itemsize + shared


def _rows_bytes(shape: AttentionShape) -> int:
    """Read per query in the backward pass: its parts, the output's cotangent, lse and delta."""
    return shape.heads * ((shape.nope + shape.rope + shape.value) * shape.itemsize + 2 * FLOAT32)


def _cost(shape: AttentionShape, block, visits, width, streamed, resident) -> pl.CostEstimate:
    """``width`` is summed over the products of a tile; ``streamed`` bytes move per visit, ``resident`` ones once."""
    visits = causal_visits(shape, block) if visits is None else visits
    scores = visits * block * block * shape.heads
    return pl.CostEstimate(
        flops=2 * scores * width,
        bytes_accessed=visits * block * streamed + shape.batch * shape.length * resident,
        transcendentals=scores,
    )
