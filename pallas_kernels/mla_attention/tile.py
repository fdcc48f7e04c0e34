"""Tiles of scores, and the blocks in which arrays reach VMEM, for all three Mosaic kernels.

A tile is held transposed, ``[keys, queries]``: maxima, sums, lse and delta of a query then lie along lanes, so that
reducing over keys is arithmetic between registers (no shuffles across lanes), the statistics of a query take one lane
instead of a row of 128, and they are written to HBM without a transposition. The price is the transposition of a block
of keys or values (512 x 128) for each tile in which it is contracted over keys, and of the accumulator once per block.

Logits are in units of log2: ``exp2`` saves a product per score, because the factor log2(e) is part of the scale.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.mla_attention import blocks
from pallas_kernels.ops import dot
from pallas_kernels.vma import interpreter, output

LOG2_E = math.log2(math.e)
HEADS_PER_STEP = 4
"""Most heads of a step. They share the mask and the rope key, and their matmuls overlap with exponentials."""
VMEM_LIMIT = 48 * 2**20
"""Bytes of VMEM for a kernel, of 64 MiB per core on v5p and tpu7x and 128 MiB on v5e and v6e."""


class AttentionSettings(NamedTuple):
    """Static settings of a call; hashable.

    Attributes:
        scale: factor of the logits.
        block: tokens of a block.
        heads: heads of a step, a divisor of the number of heads.
        interpret: interpreter of the kernels, or False to compile them.
    """

    scale: float
    block: int
    heads: int
    interpret: bool | pltpu.InterpretParams


def heads_per_step(heads: int) -> int:
    """Largest divisor of ``heads`` up to HEADS_PER_STEP."""
    return next(n for n in range(HEADS_PER_STEP, 0, -1) if heads % n == 0)


def join(nope: Array, rope: Array) -> Array:
    """Concatenates to ``[n, Dn + Dr]``: one contraction of 192 in a 256-wide matrix unit replaces passes of 128 and 64.

    In VMEM, at a lane boundary as in K2, the concatenation moves no data.
    """
    return jnp.concatenate([nope, rope], -1)


def transposed_rope(q_rope: Array) -> Array:
    """Transposes to ``[B, H, Dr, S]``: HBM pads a row of 64 to 128 lanes, but not a row of S.

    XLA chooses this layout for such an array by itself, so that the transposition moves no data.
    """
    return q_rope.swapaxes(2, 3)


def log2_scores(k: Array, q: Array, visible_KQ: Array | None, scale: float) -> Array:
    """Computes float32 logits ``[K, Q]`` times log2(e), -inf where not visible."""
    scores_KQ = dot(k, q, (1, 1)) * (scale * LOG2_E)
    return scores_KQ if visible_KQ is None else jnp.where(visible_KQ, scores_KQ, -jnp.inf)


def mask_rows(exit: Array, start: Array | None) -> Array:
    """Joins the mask's vectors to ``[B, M, S]``: exit, and start where there is one."""
    return exit[:, None] if start is None else jnp.stack([exit, start], 1)


def visible(pair: blocks.BlockPair, mask_MK: Array) -> Array:
    """Computes the mask of a pair, bool ``[K, Q]``: ``start[j] <= i < exit[j]``, of ``mask_rows``' rows."""
    block = mask_MK.shape[1]

    def column(row_1K: Array) -> Array:
        """A vector beside the keys. Mosaic only transposes whole tiles of 128 lanes."""
        return jnp.broadcast_to(row_1K, (blocks.SMALLEST_BLOCK, block)).T[:, :1]

    query_KQ = pair.query * block + lax.broadcasted_iota(jnp.int32, (block, block), 1)
    if mask_MK.shape[0] > 1:
        start = column(mask_MK[1:2])
    else:
        start = pair.key * block + lax.broadcasted_iota(jnp.int32, (block, block), 0)
    return (start <= query_KQ) & (query_KQ < column(mask_MK[:1]))


def for_each_head(pair: blocks.BlockPair, mask_ref, heads: int, start, finish) -> None:
    """Calls ``finish(head, start(head, visible))`` for the heads of a step, with the mask only if the pair needs one.

    ``start`` computes the products of the next head while ``finish`` computes exponentials. They are adjacent in the
    program, so that the matrix unit and the vector units work at the same time.
    """

    def run(visible_KQ):
        started = start(0, visible_KQ)
        for head in range(heads):
            next_started = start(head + 1, visible_KQ) if head + 1 < heads else None
            finish(head, started)
            started = next_started

    @pl.when(pair.full)
    def _():
        run(None)

    @pl.when(jnp.logical_not(pair.full))
    def _():
        run(visible(pair, mask_ref[...]))


# --- blocks of arrays; index maps take (head group, step, schedule rows, schedule pairs) ----------------------------


def query_spec(settings: AttentionSettings, width: int) -> pl.BlockSpec:
    """Block of ``[B, H, S, width]``: the queries of the pair."""
    shape = (None, settings.heads, settings.block, width)
    return pl.BlockSpec(shape, lambda h, t, rows, pairs: (rows[t], h, blocks.unpack(pairs[t]).query, 0))


def query_rope_spec(settings: AttentionSettings, width: int) -> pl.BlockSpec:
    """Block of ``[B, H, width, S]``: the queries of the pair."""
    shape = (None, settings.heads, width, settings.block)
    return pl.BlockSpec(shape, lambda h, t, rows, pairs: (rows[t], h, 0, blocks.unpack(pairs[t]).query))


def key_spec(settings: AttentionSettings, width: int) -> pl.BlockSpec:
    """Block of ``[B, H, S, width]``: the keys of the pair."""
    shape = (None, settings.heads, settings.block, width)
    return pl.BlockSpec(shape, lambda h, t, rows, pairs: (rows[t], h, blocks.unpack(pairs[t]).key, 0))


def shared_key_spec(settings: AttentionSettings, width: int) -> pl.BlockSpec:
    """Block of ``[B, S, width]``: the keys of the pair."""
    shape = (None, settings.block, width)
    return pl.BlockSpec(shape, lambda h, t, rows, pairs: (rows[t], blocks.unpack(pairs[t]).key, 0))


def mask_spec(settings: AttentionSettings, rows: int) -> pl.BlockSpec:
    """Block of ``[B, rows, S]``, see ``mask_rows``: the keys of the pair."""
    shape = (None, rows, settings.block)
    return pl.BlockSpec(shape, lambda h, t, rows, pairs: (rows[t], 0, blocks.unpack(pairs[t]).key))


def query_row_spec(settings: AttentionSettings) -> pl.BlockSpec:
    """Block of ``[B, H, 1, S]``: one float32 for each query of the pair."""
    shape = (None, settings.heads, 1, settings.block)
    return pl.BlockSpec(shape, lambda h, t, rows, pairs: (rows[t], h, 0, blocks.unpack(pairs[t]).query))


def call(
    kernel,
    settings: AttentionSettings,
    schedule: blocks.PairSchedule,
    *,
    operands,
    in_specs,
    outputs,
    out_specs,
    scratch,
    cost: pl.CostEstimate,
    name: str,
):
    """Runs a kernel over (head groups, steps of the schedule).

    Args:
        kernel: body of the kernel.
        settings: settings of the call.
        schedule: pairs of blocks.
        operands: arrays that the kernel reads; the first is ``[B, H, ...]``.
        in_specs: their blocks.
        outputs: shapes and dtypes of the results.
        out_specs: their blocks.
        scratch: shapes of float32 scratch memory in VMEM.
        cost: declared cost.
        name: name of the kernel.
    """
    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(operands[0].shape[1] // settings.heads, schedule.steps),
            in_specs=in_specs,
            out_specs=out_specs,
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        out_shape=[output(x.shape, x.dtype, operands[0]) for x in outputs],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT
        ),
        cost_estimate=cost,
        interpret=interpreter(settings.interpret, operands[0]),
        name=name,
    )(schedule.rows, schedule.pairs, *operands)
