"""Pipeline executor that JAX differentiates: the schedule's forward ticks as one scan, each of them recomputed.

Every tick's input stays until the backward pass comes to it, so live activations grow with the number of micro-batches.
It is the simplest pipeline there is: validation runs its forward half, and ``one_f_one_b`` is measured against it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp
import numpy as np

from k2jax.batch import PackedBatch
from k2jax.parallel.objective import LossShares, fold_shares
from k2jax.parallel.one_f_one_b import Pipeline, PipelineSums
from k2jax.parallel.schedule import Schedule
from k2jax.parallel.stage import ChunkStats, micro_batch, shown_features
from k2jax.sharding import STAGE
from pallas_kernels.vma import vary_tree


class ForwardSums(NamedTuple):
    """What one device adds up over the forward ticks; attributes as of ``PipelineSums``."""

    loss: LossShares
    balance_loss: Array
    stats: ChunkStats
    embed_max_logit: Array


def run(pipeline: Pipeline, layers: Any, outside: Any, batch: PackedBatch) -> PipelineSums:
    """This device's sums over all micro-batches; arguments as of ``one_f_one_b.run``."""
    layers, outside = vary_tree((layers, outside), axes=pipeline.axes)

    def objective(layers: Any, outside: Any) -> tuple[Array, ForwardSums]:
        sums = forward(pipeline, layers, outside, batch)
        return sums.loss.total + pipeline.stage.balance * sums.balance_loss, sums

    gradients, sums = jax.grad(objective, (0, 1), has_aux=True)(layers, outside)
    d_layers, d_outside = jax.tree.map(lambda g: g.astype(pipeline.gradient_dtype), gradients)
    return PipelineSums(sums.loss, sums.balance_loss, d_layers, d_outside, sums.stats, sums.embed_max_logit)


def forward(pipeline: Pipeline, layers: Any, outside: Any, batch: PackedBatch) -> ForwardSums:
    """The forward half, whose shares of the loss are not zero on stage 0 alone; arguments as of ``run``."""
    schedule, stage, axes = pipeline.schedule, pipeline.stage, pipeline.axes
    rank, last = lax.axis_index(STAGE), (schedule.chunks - 1) % schedule.stages
    ring = [(i, (i + 1) % schedule.stages) for i in range(schedule.stages)]
    rounds = jax.tree.leaves(layers)[0].shape[0]

    def cond(index: Array, function, otherwise, *arguments: Any) -> Any:
        mark = lambda branch: lambda *operands: vary_tree(branch(*operands), axes=axes)  # noqa: E731
        return lax.cond(index >= 0, mark(function), mark(otherwise), *arguments)

    def embed(index: Array) -> tuple[Array, Array]:
        micro = micro_batch(batch, index)
        return stage.embed(outside, micro, shown_features(outside, micro))

    def no_embedding(index: Array) -> tuple[Array, Array]:
        return jnp.zeros(empty.shape, empty.dtype), jnp.full(empty_max_logit.shape, -jnp.inf)

    def loss(y_BSD: Array, index: Array) -> LossShares:
        whole_BSD = lax.psum(jnp.where(rank == last, y_BSD, 0), STAGE)
        shares = stage.loss(outside, whole_BSD, micro_batch(batch, index))
        return jax.tree.map(lambda share: jnp.where(rank == 0, share, 0.0), shares)

    def no_loss(y_BSD: Array, index: Array) -> LossShares:
        return jax.tree.map(lambda share: jnp.zeros(share.shape, share.dtype), empty_loss)

    def tick(x_BSD: Array, row: dict[str, Array]):
        embedded_BSD, embed_max_logit = cond(row["embed"], embed, no_embedding, row["embed"])
        x_BSD = jnp.where((rank == 0) & (row["embed"] >= 0), embedded_BSD, x_BSD)
        index, chunk_round = row["forward"][rank], jnp.maximum(row["forward_round"][rank], 0)
        weights = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, chunk_round, 0, keepdims=False), layers)
        micro = micro_batch(batch, index, chunk_round)
        (y_BSD, balance), stats = vary_tree(stage.layers(weights, x_BSD, micro), axes=axes)
        shares = cond(row["loss"], loss, no_loss, y_BSD, row["loss"])
        return lax.ppermute(y_BSD, STAGE, ring), (shares, balance, stats, embed_max_logit, chunk_round)

    empty, empty_max_logit = jax.eval_shape(embed, jnp.int32(-1))
    empty_loss = jax.eval_shape(lambda: stage.loss(outside, *_first(empty, batch)))
    ticks = int(np.max(np.flatnonzero((schedule.table["forward"] >= 0).any(1)))) + 1
    rows = {name: jnp.asarray(schedule.table[name][:ticks]) for name in ("forward", "forward_round")}
    rows |= {"embed": jnp.asarray(schedule.embed[:ticks]), "loss": jnp.asarray(_last_forwards(schedule)[:ticks])}
    start = vary_tree(jnp.zeros(empty.shape, empty.dtype), axes=axes)
    tick = jax.checkpoint(tick, policy=jax.checkpoint_policies.nothing_saveable)
    _, (shares, balances, stats, embed_max_logit, chunk_rounds) = lax.scan(tick, start, rows)
    ran = chunk_rounds[:, None] == jnp.arange(rounds)  # which of the stage's chunks each tick ran
    max_logit = jnp.where(ran[..., None, None], stats.max_logit[:, None], -jnp.inf).max(0)
    counts = (jnp.tensordot(ran.T.astype(jnp.int32), counted, 1) for counted in stats[1:])
    total = fold_shares(shares)
    return ForwardSums(total, balances.sum(), ChunkStats(max_logit, *counts), embed_max_logit.max(0))


def _first(empty: Any, batch: PackedBatch) -> tuple[Array, PackedBatch]:
    """Activations of zeros and a micro-batch of padding."""
    return jnp.zeros(empty.shape, empty.dtype), micro_batch(batch, jnp.int32(-1))


def _last_forwards(schedule: Schedule) -> np.ndarray:
    """The micro-batch of each tick whose last chunk runs forward; -1 for none."""
    last = (schedule.chunks - 1) % schedule.stages
    runs_last = schedule.table["forward_round"][:, last] == (schedule.chunks - 1) // schedule.stages
    return np.where(runs_last, schedule.table["forward"][:, last], -1)
