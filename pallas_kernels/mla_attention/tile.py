"""Tiles of scores, and the blocks in which arrays reach VMEM, for all three Mosaic kernels.

A tile is held transposed, ``[keys, queries]``: maxima, sums, lse and delta of a query then lie along lanes, so that
reducing over keys is arithmetic between registers (no shuffles across lanes), the statistics of a query take one lane
instead of a row of 128, and they are written to HBM without a transposition. The price is the transposition of a block
of keys or values (512 x 128) for each tile in which it is contracted over keys, and of the accumulator once per block.

Logits are in units of log2: ``exp2`` saves a product per score, because the factor log2(e) is part of the scale.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Literal, NamedTuple

from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.mla_attention import blocks
from pallas_kernels.ops import dot
from pallas_kernels.vma import full, interpreter, output

LOG2_E = math.log2(math.e)
HEADS_PER_STEP = 4
"""Most heads of a step. They share the mask and the rope key, and their matmuls overlap with exponentials."""
VMEM_LIMIT = 48 * 2**20
"""Bytes of VMEM for a kernel, of 64 MiB per core on v5p and tpu7x and 128 MiB on v5e and v6e."""
LOWEST = float(jnp.finfo(jnp.float32).min)
"""Initial value of running maxima: unlike -inf it can be subtracted from the -inf of a masked score."""


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


class VisitOrder(NamedTuple):
    """What a kernel visits, in which order.

    Attributes:
        exit: int32 ``[B, S]`` in whole blocks.
        start: int32 ``[B, S]``, or None.
        group: the block that stays in VMEM during a group of steps, ``query`` or ``key``.
    """

    exit: Array
    start: Array | None
    group: Literal["query", "key"]


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
    visits: VisitOrder,
    *,
    operands,
    in_specs,
    outputs,
    out_specs,
    scratch,
    cost: pl.CostEstimate,
    name: str,
    maxima: tuple[int, ...] = (),
):
    """Runs a kernel over (head groups, steps of a schedule), once, or once for each panel if one schedule is too long.

    Args:
        kernel: body of the kernel.
        settings: settings of the call.
        visits: what the kernel visits.
        operands: arrays that the kernel reads; the first is ``[B, H, ...]``.
        in_specs: their blocks.
        outputs: shapes and dtypes of the results. Every block is complete after its group of steps.
        out_specs: their blocks.
        scratch: shapes of float32 scratch memory in VMEM.
        cost: declared cost of all visits.
        name: name of the kernel.
        maxima: indices of float32 results that are the maximum over a row's panels instead.
    """
    exit, start, group = visits
    batch, n = exit.shape[0], exit.shape[1] // settings.block
    parts = {"in_specs": in_specs, "out_specs": out_specs, "scratch": scratch, "name": name}
    run = functools.partial(_run, kernel, settings, operands=operands, outputs=outputs, **parts)
    if blocks.fits(batch, n, causal=start is None):
        return run(blocks.schedule_pairs(exit, settings.block, group, start), before=[], cost=cost)
    rows, firsts = blocks.panels(batch, n)
    groups = blocks.groups_per_panel(n)
    share = pl.CostEstimate(*(total // rows.size for total in dataclasses.astuple(cost)))

    def run_panel(before, panel):
        schedule = blocks.schedule_pairs(exit, settings.block, group, start, blocks.Panel(*panel, groups))
        after = run(schedule, before=before, cost=share)
        return [jnp.maximum(x, before[i]) if i in maxima else x for i, x in enumerate(after)], None

    nothing = [full(x.shape, LOWEST, x.dtype, *operands) for x in outputs]
    return lax.scan(run_panel, nothing, (rows, firsts))[0]


def _run(
    kernel, settings, schedule, *, operands, in_specs, outputs, out_specs, scratch, before, cost, name
) -> list[Array]:
    """Results of a schedule. Blocks that it does not visit are those of ``before``, which it overwrites."""
    given = len(operands)

    def body(rows_ref, pairs_ref, *refs):
        kernel(rows_ref, pairs_ref, *refs[:given], *refs[given + len(before) :])

    return pl.pallas_call(
        body,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(operands[0].shape[1] // settings.heads, schedule.steps),
            in_specs=[*in_specs, *(pl.BlockSpec(memory_space=pl.ANY) for _ in before)],
            out_specs=out_specs,
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        out_shape=[output(x.shape, x.dtype, operands[0]) for x in outputs],
        input_output_aliases={2 + given + i: i for i in range(len(before))},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT
        ),
        cost_estimate=cost,
        interpret=interpreter(settings.interpret, operands[0]),
        name=name,
    )(schedule.rows, schedule.pairs, *operands, *before)
