"""Pipeline executor for schedule tables: one scan over ticks in which each stage runs a forward and a backward.

A forward keeps its chunk's input and what ``train.keep_across`` names; the backward runs the chunk again from them
(``jax.vjp``). They lie in slots that the schedule assigns, so live activations are bounded by the number of stages, not
of micro-batches.

The table is cut into phases (forwards only, both, backwards only) with a scan each; within one, idle cells compute on
padding and on cotangents of zero. No stage ever branches by its own rank: a collective inside such a branch would hang.
The embedding and the loss are branches that all stages take together. What travels to a neighbour is sent where the
next tick needs it, so that it can travel while the other direction computes.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.batch import PackedBatch
from k2jax.parallel.accumulate import FEATURES, add_gradients
from k2jax.parallel.kept import kept_leaves, take_leaves, with_leaves
from k2jax.parallel.objective import LossShares, combine_shares
from k2jax.parallel.schedule import Phase, Schedule
from k2jax.parallel.stage import ChunkStats, Stage, micro_batch, shown_features
from k2jax.sharding import STAGE
from pallas_kernels.vma import vary_tree


class Pipeline(NamedTuple):
    """What tracing knows of a pipeline.

    Attributes:
        schedule: the table.
        stage: the functions of a stage.
        gradient_dtype: in which gradients of micro-batches add up.
        axes: mesh axes over whose devices the shares of gradients differ.
    """

    schedule: Schedule
    stage: Stage
    gradient_dtype: Any
    axes: tuple[str, ...]


class PipelineSums(NamedTuple):
    """What one device adds up over ticks; the caller sums over the mesh.

    Attributes:
        loss: shares of the loss; not zero on stage 0 alone.
        balance_loss: ``[]``, without its coefficient.
        layers: gradients of the stage's layers ``[V, layers, ...]``.
        outside: gradients of the weights around the pipeline.
        stats: of the stage's layers, ``[V, layers, ...]``.
        embed_max_logit: of the leading dense layers, ``[dense layers, H / S]``.
    """

    loss: LossShares
    balance_loss: Array
    layers: Any
    outside: Any
    stats: ChunkStats
    embed_max_logit: Array


class _Buffers(NamedTuple):
    """What lies on a stage between two ticks."""

    inputs: Array  # [slots + 1, B, S, D]; the last takes what belongs nowhere
    kept: list[Array]  # residuals of the inputs' chunks, [slots + 1, ...]
    cotangents: Array
    arrived: Array  # from the stage before
    top: Array  # the last forward's result
    returning: Array  # cotangent for the stage before


def run(pipeline: Pipeline, layers: Any, outside: Any, batch: PackedBatch) -> PipelineSums:
    """This device's sums over all micro-batches; inside a ``shard_map`` over ``pipeline.axes``, with check_vma.

    Args:
        pipeline: schedule and functions.
        layers: this stage's layers ``[V, layers, ...]``.
        outside: this stage's slices of the weights around the pipeline.
        batch: ``[M, B, S]``, equal on all stages.
    """
    schedule = pipeline.schedule
    # Marked as different everywhere, so that differentiation sums over no axis inside the loop.
    layers, outside = vary_tree((layers, outside), axes=pipeline.axes)
    machine = _Machine(pipeline, layers, outside, batch)
    buffers, sums = machine.start()
    columns = {name: jnp.asarray(column) for name, column in schedule.table.items()}
    columns |= {name: jnp.asarray(getattr(schedule, name)) for name in ("embed", "loss", "embed_backward")}
    for phase in schedule.phases():
        rows = {name: column[phase.ticks] for name, column in columns.items()}
        if phase.backward or phase.loss:
            tick = functools.partial(machine.tick, phase=phase)
            (buffers, sums), _ = lax.scan(
                lambda carry, row, tick=tick: (tick(*carry, row), None), (buffers, sums), rows
            )
        else:  # the gradients stay out of a loop that has none
            counted = sums._replace(layers=None, outside=None)
            (buffers, counted), _ = lax.scan(
                lambda carry, row: (machine.forward(*carry, row), None), (buffers, counted), rows
            )
            sums = counted._replace(layers=sums.layers, outside=sums.outside)
    return sums


class _Machine:
    """One stage: what does not change from tick to tick."""

    def __init__(self, pipeline: Pipeline, layers: Any, outside: Any, batch: PackedBatch):
        self.schedule, self.stage, self.gradient_dtype, self.axes = pipeline
        self.layers, self.outside, self.batch = layers, outside, batch
        # Without the table of features, whose gradient is added up row by row.
        self._weights = {name: part for name, part in outside.items() if name != FEATURES}
        self.rank = lax.axis_index(STAGE)
        self.last = (self.schedule.chunks - 1) % self.schedule.stages  # the stage of the last chunk
        self.kept: tuple[int, ...] = ()  # leaves of a chunk's backward pass that lie in slots

    def start(self) -> tuple[_Buffers, PipelineSums]:
        """Empty buffers and sums."""

        def once() -> tuple[Array, Array, ChunkStats, LossShares, list[Array]]:
            micro, weights = micro_batch(self.batch, jnp.int32(-1)), _at(self.layers, jnp.int32(0))
            x_BSD, max_logit = vary_tree(self._embed(micro), axes=self.axes)
            if self.stage.keeps:
                self.kept = kept_leaves(lambda x_BSD: self._pull(weights, x_BSD, micro, []), x_BSD)
            _, stats, kept = self._run_chunk(weights, x_BSD, micro)
            return x_BSD, max_logit, stats, self.stage.loss(self.outside, x_BSD, micro), kept

        x_BSD, max_logit, stats, loss, kept = jax.eval_shape(once)
        room = lambda slots, of=x_BSD: jnp.zeros((slots + 1, *of.shape), of.dtype)  # noqa: E731
        zeros = jnp.zeros(x_BSD.shape, x_BSD.dtype)
        gradient = lambda w: vary_tree(jnp.zeros(w.shape, self.gradient_dtype), like=w)  # noqa: E731
        buffers = _Buffers(
            room(self.schedule.slots),
            [room(self.schedule.slots, of) for of in kept],
            room(self.schedule.cotangent_slots),
            zeros,
            zeros,
            zeros,
        )
        rounds = jax.tree.leaves(self.layers)[0].shape[0]
        sums = PipelineSums(
            jax.tree.map(lambda share: jnp.zeros(share.shape, share.dtype), loss),
            jnp.zeros(()),
            jax.tree.map(gradient, self.layers),
            jax.tree.map(gradient, self.outside),
            ChunkStats(
                vary_tree(jnp.full((rounds, *stats.max_logit.shape), -jnp.inf), like=stats.max_logit),
                *(jnp.zeros((rounds, *counts.shape), jnp.int32) for counts in stats[1:]),
            ),
            jnp.full(max_logit.shape, -jnp.inf),
        )
        return vary_tree((buffers, sums), axes=self.axes)

    def _cell(self, row: dict[str, Array], name: str) -> Array:
        return row[name][self.rank]

    def _chunk(self, micro: PackedBatch) -> Callable[[Any, Array], tuple[tuple[Array, Array], ChunkStats]]:
        """``(weights, x_BSD) -> ((y_BSD, balance loss), statistics)`` of a micro-batch."""
        return lambda weights, x_BSD: vary_tree(self.stage.layers(weights, x_BSD, micro), axes=self.axes)

    def _run_chunk(
        self, weights: Any, x_BSD: Array, micro: PackedBatch
    ) -> tuple[tuple[Array, Array], ChunkStats, list[Array]]:
        """A chunk forward, and what its backward needs of it beside its input."""
        if not self.kept:
            return *self._chunk(micro)(weights, x_BSD), []
        out, pull, stats = jax.vjp(self._chunk(micro), weights, x_BSD, has_aux=True)
        return out, stats, take_leaves(pull, self.kept)

    def _pull(self, weights: Any, x_BSD: Array, micro: PackedBatch, kept: list[Array]) -> Callable[[Any], Any]:
        """A chunk's backward pass, which runs the chunk again but for what leads to what is kept."""
        build = lambda: jax.vjp(self._chunk(micro), weights, x_BSD, has_aux=True)[1]  # noqa: E731
        return with_leaves(build, self.kept, kept) if kept else build()

    def forward(self, buffers: _Buffers, sums: PipelineSums, row: dict[str, Array]) -> tuple[_Buffers, PipelineSums]:
        """Takes what arrived, lets a micro-batch enter, runs a chunk forward and sends its result on."""
        inputs = _put(buffers.inputs, self._cell(row, "arrival_slot"), buffers.arrived)
        entered = row["embed"]
        slot = jnp.where((entered >= 0) & (self.rank == 0), self._cell(row, "forward_slot"), -1)
        embedded_BSD = self._when(entered, self._enter, jnp.zeros_like(buffers.arrived), entered)
        inputs = _put(inputs, slot, embedded_BSD)
        chunk_round = self._cell(row, "forward_round")
        micro = micro_batch(self.batch, self._cell(row, "forward"), chunk_round)
        slot = self._cell(row, "forward_slot")
        x_BSD = inputs[jnp.maximum(slot, 0)]
        (y_BSD, balance), stats, kept = self._run_chunk(_at(self.layers, chunk_round), x_BSD, micro)
        kept = [_put(buffer, slot, value) for buffer, value in zip(buffers.kept, kept, strict=True)]
        chunk_round = jnp.maximum(chunk_round, 0)
        counts = (total.at[chunk_round].add(more) for total, more in zip(sums.stats[1:], stats[1:], strict=True))
        stats = ChunkStats(sums.stats.max_logit.at[chunk_round].max(stats.max_logit), *counts)
        sums = sums._replace(stats=stats, balance_loss=sums.balance_loss + balance)
        arrived = lax.ppermute(y_BSD, STAGE, self._ring(1))
        return buffers._replace(inputs=inputs, kept=kept, top=y_BSD, arrived=arrived), sums

    def tick(
        self, buffers: _Buffers, sums: PipelineSums, row: dict[str, Array], *, phase: Phase
    ) -> tuple[_Buffers, PipelineSums]:
        """What the phase has of a forward, a loss and a backward."""
        top_BSD, cotangents = buffers.top, buffers.cotangents  # of the tick before: what the loss takes now
        if phase.backward:  # sent here, so that it may travel while the forward runs
            returned = lax.ppermute(buffers.returning, STAGE, self._ring(-1))
            cotangents = _put(cotangents, self._cell(row, "cotangent_arrival_slot"), returned)
        if phase.forward:
            buffers, sums = self.forward(buffers, sums, row)
        if phase.loss:
            sums, d_top_BSD = self._loss(sums, top_BSD, row["loss"])
            cotangents = _put(cotangents, self._cell(row, "loss_slot"), d_top_BSD)
        if phase.backward:
            sums, d_x_BSD = self._backward(sums, buffers, cotangents, row)
            sums = self._embed_backward(sums, d_x_BSD, row["embed_backward"])
            buffers = buffers._replace(returning=d_x_BSD)
        return buffers._replace(cotangents=cotangents), sums

    def _loss(self, sums: PipelineSums, top_BSD: Array, index: Array) -> tuple[PipelineSums, Array]:
        """Loss of a micro-batch whose last chunk ran at the tick before; all stages together."""

        def objective(outside: Any, y_BSD: Array, micro: PackedBatch) -> tuple[Array, LossShares]:
            shares = self.stage.loss(outside, y_BSD, micro)
            return shares.total, shares

        def compute(totals: LossShares, grads: Any, top_BSD: Array, index: Array):
            y_BSD = lax.psum(jnp.where(self.rank == self.last, top_BSD, 0), STAGE)
            gradient = jax.grad(objective, (0, 1), has_aux=True)
            (d_outside, d_top_BSD), shares = gradient(self._weights, y_BSD, micro_batch(self.batch, index))
            own = jax.tree.map(lambda share: jnp.where(self.rank == 0, share, 0.0), shares)
            totals = combine_shares(totals, own)
            return totals, add_gradients(grads, d_outside, None), d_top_BSD

        kept = (sums.loss, sums.outside, jnp.zeros_like(top_BSD))
        skip = lambda totals, grads, top_BSD, index: kept  # noqa: E731
        totals, grads, d_top_BSD = self._cond(index >= 0, compute, skip, sums.loss, sums.outside, top_BSD, index)
        return sums._replace(loss=totals, outside=grads), d_top_BSD

    def _backward(
        self, sums: PipelineSums, buffers: _Buffers, cotangents: Array, row: dict[str, Array]
    ) -> tuple[PipelineSums, Array]:
        index, chunk_round = self._cell(row, "backward"), jnp.maximum(self._cell(row, "backward_round"), 0)
        live, micro = index >= 0, micro_batch(self.batch, index, chunk_round)
        slot = jnp.maximum(self._cell(row, "backward_slot"), 0)
        d_y_BSD = cotangents[jnp.maximum(self._cell(row, "cotangent_slot"), 0)]
        weights = _at(self.layers, chunk_round)
        pull = self._pull(weights, buffers.inputs[slot], micro, [buffer[slot] for buffer in buffers.kept])
        d_balance = vary_tree(jnp.where(live, self.stage.balance, 0.0), axes=self.axes)
        d_weights, d_x_BSD = pull((jnp.where(live, d_y_BSD, 0), d_balance))  # an idle cell adds exact zeros
        layers = jax.tree.map(lambda a, g: a.at[chunk_round].add(g.astype(a.dtype)), sums.layers, d_weights)
        return sums._replace(layers=layers), d_x_BSD

    def _enter(self, index: Array) -> Array:
        return self._embed(micro_batch(self.batch, index))[0]

    def _embed(self, micro: PackedBatch) -> tuple[Array, Array]:
        return self.stage.embed(self.outside, micro, shown_features(self.outside, micro))

    def _embed_backward(self, sums: PipelineSums, d_x_BSD: Array, index: Array) -> PipelineSums:
        """The embedding's gradient, from the cotangent of what it gave to stage 0; all stages together."""

        def compute(grads: Any, largest: Array, d_x_BSD: Array, index: Array):
            micro = micro_batch(self.batch, index)
            d_entered_BSD = lax.psum(jnp.where(self.rank == 0, d_x_BSD, 0), STAGE)
            embed = lambda outside, shown: self.stage.embed(outside, micro, shown)  # noqa: E731
            shown = shown_features(self.outside, micro)
            _, pull, max_logit = jax.vjp(embed, self._weights, shown, has_aux=True)
            d_outside, d_shown = pull(d_entered_BSD)
            first = self.rank * len(self.outside[FEATURES]) if shown else 0
            grads = add_gradients(grads, {**d_outside, **d_shown}, micro.media, first)
            return grads, jnp.maximum(largest, max_logit)

        skip = lambda grads, largest, d_x_BSD, index: (grads, largest)  # noqa: E731
        arguments = (sums.outside, sums.embed_max_logit, d_x_BSD, index)
        outside, largest = self._cond(index >= 0, compute, skip, *arguments)
        return sums._replace(outside=outside, embed_max_logit=largest)

    def _when(self, index: Array, function, otherwise: Array, *arguments: Any) -> Array:
        return self._cond(index >= 0, function, lambda *_: otherwise, *arguments)

    def _cond(self, predicate: Array, function, otherwise, *arguments: Any) -> Any:
        """A branch that every stage takes alike, whose results are marked as different everywhere."""
        mark = lambda branch: lambda *operands: vary_tree(branch(*operands), axes=self.axes)  # noqa: E731
        return lax.cond(predicate, mark(function), mark(otherwise), *arguments)

    def _ring(self, step: int) -> list[tuple[int, int]]:
        count = self.schedule.stages
        return [(i, (i + step) % count) for i in range(count)]


def _put(buffer: Array, slot: Array, value: Array) -> Array:
    """Writes into a slot; what has none goes to the last, which nobody reads."""
    return lax.dynamic_update_index_in_dim(buffer, value, jnp.where(slot < 0, buffer.shape[0] - 1, slot), 0)


def _at(tree: Any, index: Array) -> Any:
    return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, jnp.maximum(index, 0), 0, keepdims=False), tree)
