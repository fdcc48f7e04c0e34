"""What the three Mosaic kernels share: one tile of scores, and the blocks in which arrays reach VMEM.

A tile is held transposed, ``[keys, queries]``: maxima, sums, lse and delta of a query then lie along lanes, so that
reducing over keys is arithmetic between registers (no shuffles across lanes), the statistics take one row instead of
128 lanes per query, and they go to HBM as they are. The price is the transposition of a block of keys or values
(512 x 128) per tile where it is contracted over keys, and of the accumulator once per block.

Logits are in units of log2: ``exp2`` saves a product per score, as the factor log2(e) joins the scale.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.mla_attention import blocks
from pallas_kernels.varying import interpreter, output

LOG2_E = math.log2(math.e)
HEADS_PER_STEP = 4
"""At most: they share the mask and the fetched rope key, and let the compiler overlap matmuls with exponentials."""
VMEM_LIMIT = 48 * 2**20
"""Of 64 MiB per core on v5p and tpu7x, 128 on v5e and v6e."""


class Plan(NamedTuple):
    """What is static about a call; hashable."""

    scale: float
    block: int
    heads: int
    """Heads per step, a divisor of all heads."""
    interpret: bool | pltpu.InterpretParams


def heads_per_step(heads: int) -> int:
    """The largest divisor of ``heads`` up to HEADS_PER_STEP."""
    return next(n for n in range(HEADS_PER_STEP, 0, -1) if heads % n == 0)


def dot(a: Array, b: Array, contract: tuple[int, int]) -> Array:
    """Float32 product of two matrices over one axis of each; float32 inputs are multiplied exactly."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT
    dimensions = (((contract[0],), (contract[1],)), ((), ()))
    return lax.dot_general(a, b, dimensions, precision=precision, preferred_element_type=jnp.float32)


def join(nope: Array, rope: Array) -> Array:
    """``[n, Dn + Dr]``: one contraction of 192 fills a 256-wide matrix unit where 128 and 64 would take two passes.

    In VMEM, at a lane boundary for K2, the concatenation only names registers.
    """
    return jnp.concatenate([nope, rope], -1)


def transposed_rope(q_rope: Array) -> Array:
    """``[B, H, Dr, S]``: in HBM a row of 64 would be padded to 128 lanes, a row of S is not.

    The layout is one that XLA gives such an array by itself, so that the transposition moves nothing.
    """
    return q_rope.swapaxes(2, 3)


def log2_scores(k: Array, q: Array, visible_KQ: Array | None, scale: float) -> Array:
    """Float32 logits ``[K, Q]`` times log2(e), -inf where not visible."""
    scores_KQ = dot(k, q, (1, 1)) * (scale * LOG2_E)
    return scores_KQ if visible_KQ is None else jnp.where(visible_KQ, scores_KQ, -jnp.inf)


def visible(pair: blocks.Pair, exit_1K: Array) -> Array:
    """Bool ``[K, Q]``: ``j <= i < exit[j]``."""
    block = exit_1K.shape[1]
    # Mosaic transposes whole tiles of 128 lanes; as a column each exit stands beside its key.
    exit_K1 = jnp.broadcast_to(exit_1K, (blocks.SMALLEST_BLOCK, block)).T[:, :1]
    key_KQ = pair.key * block + lax.broadcasted_iota(jnp.int32, (block, block), 0)
    query_KQ = pair.query * block + lax.broadcasted_iota(jnp.int32, (block, block), 1)
    return (key_KQ <= query_KQ) & (query_KQ < exit_K1)


def for_each_head(pair: blocks.Pair, exit_ref, heads: int, start, finish) -> None:
    """Call ``finish(head, start(head, visible))`` for the heads of the step, with the mask only if the pair needs one.

    The products of ``start`` are those of the next head while ``finish`` exponentiates: side by side in the program,
    matrix unit and vector units work at once.
    """

    def run(visible_KQ):
        started = start(0, visible_KQ)
        for head in range(heads):
            ahead = start(head + 1, visible_KQ) if head + 1 < heads else None
            finish(head, started)
            started = ahead

    @pl.when(pair.full)
    def _():
        run(None)

    @pl.when(jnp.logical_not(pair.full))
    def _():
        run(visible(pair, exit_ref[...]))


# --- blocks of arrays; each index map gets (head group, step, schedule rows, schedule pairs) ------------------------


def of_queries(plan: Plan, width: int) -> pl.BlockSpec:
    """Of ``[B, H, S, width]``, the queries of the pair."""
    shape = (None, plan.heads, plan.block, width)
    return pl.BlockSpec(shape, lambda h, t, rows, pairs: (rows[t], h, blocks.unpack(pairs[t]).query, 0))


def of_query_ropes(plan: Plan, width: int) -> pl.BlockSpec:
    """Of ``[B, H, width, S]``, the queries of the pair."""
    shape = (None, plan.heads, width, plan.block)
    return pl.BlockSpec(shape, lambda h, t, rows, pairs: (rows[t], h, 0, blocks.unpack(pairs[t]).query))


def of_keys(plan: Plan, width: int) -> pl.BlockSpec:
    """Of ``[B, H, S, width]``, the keys of the pair."""
    shape = (None, plan.heads, plan.block, width)
    return pl.BlockSpec(shape, lambda h, t, rows, pairs: (rows[t], h, blocks.unpack(pairs[t]).key, 0))


def of_shared_keys(plan: Plan, width: int) -> pl.BlockSpec:
    """Of ``[B, S, width]``, the keys of the pair."""
    shape = (None, plan.block, width)
    return pl.BlockSpec(shape, lambda h, t, rows, pairs: (rows[t], blocks.unpack(pairs[t]).key, 0))


def of_exits(plan: Plan) -> pl.BlockSpec:
    """Of ``[B, 1, S]``, the keys of the pair."""
    shape = (None, 1, plan.block)
    return pl.BlockSpec(shape, lambda h, t, rows, pairs: (rows[t], 0, blocks.unpack(pairs[t]).key))


def of_query_rows(plan: Plan) -> pl.BlockSpec:
    """Of ``[B, H, 1, S]``, one float32 per query of the pair."""
    shape = (None, plan.heads, 1, plan.block)
    return pl.BlockSpec(shape, lambda h, t, rows, pairs: (rows[t], h, 0, blocks.unpack(pairs[t]).query))


def call(kernel, plan: Plan, schedule: blocks.Schedule, inputs, in_specs, outputs, out_specs, scratch, cost, name):
    """One pallas_call over (head groups, steps of the schedule); ``outputs`` are the results' shapes and dtypes.

    ``scratch`` lists shapes, all float32 in VMEM.
    """
    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(inputs[0].shape[1] // plan.heads, schedule.steps),
            in_specs=in_specs,
            out_specs=out_specs,
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        out_shape=[output(x.shape, x.dtype, inputs[0]) for x in outputs],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT
        ),
        cost_estimate=cost,
        interpret=interpreter(plan.interpret, inputs[0]),
        name=name,
    )(schedule.rows, schedule.pairs, *inputs)
