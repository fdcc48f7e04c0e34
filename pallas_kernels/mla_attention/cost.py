"""FLOPs, bytes and exponentials of the Mosaic kernels, counted from their products and fetches.

``visits`` is the number of pairs of blocks over the batch. A kernel declares all pairs that its mask may show to the
compiler, because the exits are not known then. Bytes are those of the arrays' elements: a width of 64 counts as 64,
although a TPU's tiles pad it to 128.
"""

from __future__ import annotations

import dataclasses

from jax import Array
from jax.experimental import pallas as pl

from pallas_kernels.mla_attention.blocks import max_pairs

FLOAT32 = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """Sizes of a call.

    Attributes:
        batch: B.
        heads: H.
        length: S, in whole blocks.
        nope: Dn.
        rope: Dr.
        value: Dv.
        itemsize: size of one element [bytes].
    """

    batch: int
    heads: int
    length: int
    nope: int
    rope: int
    value: int
    itemsize: int

    @classmethod
    def of(cls, q_nope: Array, rope: int, v: Array) -> AttentionShape:
        """Sizes of a call with these inputs and this width of the rope."""
        sizes = dict(zip(("batch", "heads", "length", "nope"), q_nope.shape, strict=True))
        return cls(**sizes, rope=rope, value=v.shape[-1], itemsize=v.dtype.itemsize)


def max_visits(exit: Array, block: int, causal: bool) -> int:
    """Number of pairs of blocks of exits ``[B, S]`` in whole blocks, if every key that the mask may show is visible."""
    return exit.shape[0] * max_pairs(exit.shape[1] // block, causal)


def forward_cost(shape: AttentionShape, block: int, heads: int, visits: int) -> pl.CostEstimate:
    """Cost of the forward kernel with ``heads`` heads per step."""
    written = shape.heads * (shape.value * shape.itemsize + FLOAT32)
    read = shape.heads * (shape.nope + shape.rope) * shape.itemsize
    streamed = _keys_bytes(shape, heads)
    return _cost(shape, block, visits, (shape.nope + shape.rope) + shape.value, streamed, read + written)


def query_gradients_cost(shape: AttentionShape, block: int, heads: int, visits: int) -> pl.CostEstimate:
    """Cost of the kernel for dq."""
    written = shape.heads * (shape.nope + shape.rope) * shape.itemsize
    streamed = _keys_bytes(shape, heads)
    width = 2 * (shape.nope + shape.rope) + shape.value
    return _cost(shape, block, visits, width, streamed, _rows_bytes(shape) + written)


def key_gradients_cost(shape: AttentionShape, block: int, heads: int, visits: int) -> pl.CostEstimate:
    """Cost of the kernel for dk and dv."""
    written = shape.heads * (shape.nope + shape.value) * shape.itemsize + shape.heads // heads * shape.rope * FLOAT32
    width = 2 * (shape.nope + shape.rope) + 2 * shape.value
    return _cost(shape, block, visits, width, _rows_bytes(shape), _keys_bytes(shape, heads) + written)


def _keys_bytes(shape: AttentionShape, heads: int) -> int:
    """Bytes read for a key: both parts of it, the value, and for each group of heads the shared key and the exit."""
    shared = shape.heads // heads * (shape.rope * shape.itemsize + FLOAT32)
    return shape.heads * (shape.nope + shape.value) * shape.itemsize + shared


def _rows_bytes(shape: AttentionShape) -> int:
    """Bytes read for a query in the backward pass: both parts of it, the output's cotangent, lse and delta."""
    return shape.heads * ((shape.nope + shape.rope + shape.value) * shape.itemsize + 2 * FLOAT32)


def _cost(shape: AttentionShape, block, visits, width, streamed, resident) -> pl.CostEstimate:
    """Cost of a kernel.

    ``width`` is summed over the products of a tile. ``streamed`` bytes of a token move at every visit of its block,
    ``resident`` bytes of a token once.
    """
    scores = visits * block * block * shape.heads
    return pl.CostEstimate(
        flops=2 * scores * width,
        bytes_accessed=visits * block * streamed + shape.batch * shape.length * resident,
        transcendentals=scores,
    )
