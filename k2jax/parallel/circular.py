"""Pipeline executor that JAX differentiates: the schedule's forward ticks as one scan, each of them recomputed.

Every tick's input stays until the backward pass comes to it, so live activations grow with the number of micro-batches.
It is the simplest pipeline there is: validation runs its forward half, and ``one_f_one_b`` is measured against it.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import Array, lax
import jax.numpy as jnp
import numpy as np

from k2jax.batch import PackedBatch
from k2jax.parallel.one_f_one_b import Sums, Weighing
from k2jax.parallel.pieces import STAGE, ChunkStats, Pieces, micro_batch
from k2jax.parallel.schedule import Schedule
from pallas_kernels.varying import vary_tree


def run(
    schedule: Schedule,
    pieces: Pieces,
    body: Any,
    outer: Any,
    batch: PackedBatch,
    weighing: Weighing,
    dtype: Any,
    axes: tuple[str, ...],
) -> Sums:
    """This device's sums over all micro-batches; arguments as of ``one_f_one_b.run``."""
    body, outer = vary_tree((body, outer), axes=axes)

    def objective(body: Any, outer: Any):
        loss, balance, stats, entrance_max = forward(schedule, pieces, body, outer, batch, weighing, axes)
        return loss + weighing.balance * balance, (loss, balance, stats, entrance_max)

    (_, aux), (d_body, d_outer) = jax.value_and_grad(objective, (0, 1), has_aux=True)(body, outer)
    loss, balance, stats, entrance_max = aux
    d_body, d_outer = jax.tree.map(lambda g: g.astype(dtype), (d_body, d_outer))
    return Sums(loss, balance, d_body, d_outer, stats, entrance_max)


def forward(
    schedule: Schedule,
    pieces: Pieces,
    body: Any,
    outer: Any,
    batch: PackedBatch,
    weighing: Weighing,
    axes: tuple[str, ...],
) -> tuple[Array, Array, ChunkStats, Array]:
    """Loss (on stage 0 alone), balance loss, statistics of the stage's layers and the entrance's maximum logits."""
    rank, last = lax.axis_index(STAGE), (schedule.chunks - 1) % schedule.stages
    ring = [(i, (i + 1) % schedule.stages) for i in range(schedule.stages)]
    rounds = jax.tree.leaves(body)[0].shape[0]

    def cond(index: Array, function, otherwise, *arguments: Any) -> Any:
        mark = lambda branch: lambda *given: vary_tree(branch(*given), axes=axes)  # noqa: E731
        return lax.cond(index >= 0, mark(function), mark(otherwise), *arguments)

    def enter(index: Array):
        return pieces.entrance(outer, micro_batch(batch, index))

    def leave(y: Array, index: Array) -> Array:
        whole = lax.psum(jnp.where(rank == last, y, 0), STAGE)
        value = pieces.exit(outer, whole, micro_batch(batch, index)) / weighing.denominator
        return jnp.where(rank == 0, value, 0.0)

    def tick(x: Array, row: dict[str, Array]):
        nothing = jax.tree.map(lambda s: jnp.full(s.shape, -jnp.inf if s is entrance_shape else 0, s.dtype), entered)
        x0, entrance_max = cond(row["entrance"], enter, lambda index: nothing, row["entrance"])
        x = jnp.where((rank == 0) & (row["entrance"] >= 0), x0, x)
        index, at = row["forward"][rank], jnp.maximum(row["forward_round"][rank], 0)
        weights = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, at, 0, keepdims=False), body)
        (y, balance), stats = vary_tree(pieces.chunk(weights, x, micro_batch(batch, index)), axes=axes)
        loss = cond(row["leave"], leave, lambda y, index: jnp.zeros(()), y, row["leave"])
        out = (loss, balance, ChunkStats(*stats), entrance_max, at)
        return lax.ppermute(y, STAGE, ring), out

    one = jax.eval_shape(lambda: micro_batch(batch, jnp.int32(-1)))
    entered = jax.eval_shape(pieces.entrance, outer, one)
    entrance_shape = entered[1]
    ticks = int(np.max(np.flatnonzero((schedule.table["forward"] >= 0).any(1)))) + 1
    rows = {name: jnp.asarray(schedule.table[name][:ticks]) for name in ("forward", "forward_round")}
    rows["entrance"] = jnp.asarray(schedule.entrance[:ticks])
    rows["leave"] = jnp.asarray(_leaving(schedule)[:ticks])
    start = vary_tree(jnp.zeros(entered[0].shape, entered[0].dtype), axes=axes)
    tick = jax.checkpoint(tick, policy=jax.checkpoint_policies.nothing_saveable)
    _, (losses, balances, stats, entrance_max, at) = lax.scan(tick, start, rows)
    here = at[:, None] == jnp.arange(rounds)  # which of the stage's chunks each tick ran
    max_logit = jnp.where(here[..., None, None], stats.max_logit[:, None], -jnp.inf).max(0)
    counts = (jnp.tensordot(here.T.astype(jnp.int32), counted, 1) for counted in stats[1:])
    return losses.sum(), balances.sum(), ChunkStats(max_logit, *counts), entrance_max.max(0)


def _leaving(schedule: Schedule) -> np.ndarray:
    """By tick, the micro-batch whose last chunk runs forward; -1 for none."""
    last = (schedule.chunks - 1) % schedule.stages
    runs_last = schedule.table["forward_round"][:, last] == (schedule.chunks - 1) // schedule.stages
    return np.where(runs_last, schedule.table["forward"][:, last], -1)
