"""Pipeline executor for schedule tables: one scan over ticks in which each stage runs a forward and a backward.

A forward keeps nothing but its chunk's input; the backward runs the chunk again from it (``jax.vjp``). Inputs lie in
slots that the schedule assigns, so live activations are bounded by the number of stages, not of micro-batches.

The table is cut into phases (forwards only, both, backwards only) with a scan each; within one, idle cells compute on
padding and on cotangents of zero. No stage ever branches by its own rank: a collective inside such a branch would hang.
Entrance and exit are branches that all stages take together. What travels to a neighbour is sent where the next tick
needs it, so that it can travel while the other direction computes.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.batch import PackedBatch
from k2jax.parallel.pieces import STAGE, ChunkStats, Pieces, micro_batch
from k2jax.parallel.schedule import Phase, Schedule
from pallas_kernels.varying import vary_tree


class Sums(NamedTuple):
    """What one device adds up over ticks; the caller sums over the mesh.

    Attributes:
        loss: ``[]``, mean nll per target; on stage 0 alone.
        balance_loss: ``[]``, without its coefficient.
        body: gradients of the stage's layers ``[V, layers, ...]``.
        outer: gradients of the weights around the pipeline.
        stats: of the stage's layers, ``[V, layers, ...]``.
        entrance_max_logit: ``[dense layers, H / S]``.
    """

    loss: Array
    balance_loss: Array
    body: Any
    outer: Any
    stats: ChunkStats
    entrance_max_logit: Array


class Buffers(NamedTuple):
    """What lies on a stage between two ticks."""

    inputs: Array  # [slots + 1, B, S, D]; the last takes what belongs nowhere
    cotangents: Array
    arrived: Array  # from the stage before
    top: Array  # the last forward's result
    returning: Array  # cotangent for the stage before


class Weighing(NamedTuple):
    """Constants of the loss: the batch's sum of weights, and the balance loss's coefficient over its rows."""

    denominator: Array
    balance: float


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
    """This device's sums over all micro-batches; inside a ``shard_map`` over ``axes``, with check_vma.

    Args:
        schedule: the table.
        pieces: chunk, entrance and exit.
        body: this stage's layers ``[V, layers, ...]``.
        outer: this stage's slices of the weights around the pipeline.
        batch: ``[M, B, S]``, equal on all stages.
        weighing: constants of the loss.
        dtype: in which gradients add up.
        axes: of the mesh, over whose devices parts of gradients differ.
    """
    # Marked as different everywhere, so that differentiation sums over no axis inside the loop.
    body, outer = vary_tree((body, outer), axes=axes)
    machine = _Machine(schedule, pieces, body, outer, batch, weighing, axes)
    buffers, sums = machine.start(dtype)
    columns = {name: jnp.asarray(column) for name, column in schedule.table.items()}
    columns |= {name: jnp.asarray(getattr(schedule, name)) for name in ("entrance", "exit", "unembed")}
    for phase in schedule.phases():
        rows = {name: column[phase.ticks] for name, column in columns.items()}
        if phase.backward or phase.exit:
            tick = functools.partial(machine.tick, phase=phase)
            (buffers, sums), _ = lax.scan(
                lambda carry, row, tick=tick: (tick(*carry, row), None), (buffers, sums), rows
            )
        else:  # the gradients stay out of a loop that has none
            buffers, _ = lax.scan(lambda carry, row: (machine.forward(carry, row), None), buffers, rows)
    return sums


class _Machine:
    """One stage: what does not change from tick to tick."""

    def __init__(self, schedule, pieces, body, outer, batch, weighing, axes):
        self.schedule, self.pieces, self.body, self.outer = schedule, pieces, body, outer
        self.batch, self.weighing, self.axes = batch, weighing, axes
        self.rank = lax.axis_index(STAGE)
        self.last = (schedule.chunks - 1) % schedule.stages  # the stage of the last chunk

    def start(self, dtype: Any) -> tuple[Buffers, Sums]:
        """Empty buffers and sums."""

        def once() -> tuple[Array, Array, ChunkStats]:
            micro = micro_batch(self.batch, jnp.int32(-1))
            x, entrance_max = vary_tree(self.pieces.entrance(self.outer, micro), axes=self.axes)
            return x, entrance_max, self.pieces.chunk(_at(self.body, jnp.int32(0)), x, micro)[1]

        x, entrance_max, stats = jax.eval_shape(once)
        room = lambda slots: jnp.zeros((slots + 1, *x.shape), x.dtype)  # noqa: E731
        zeros = jnp.zeros(x.shape, x.dtype)
        buffers = Buffers(room(self.schedule.slots), room(self.schedule.cotangent_slots), zeros, zeros, zeros)
        rounds = jax.tree.leaves(self.body)[0].shape[0]
        sums = Sums(
            jnp.zeros(()),
            jnp.zeros(()),
            jax.tree.map(lambda w: vary_tree(jnp.zeros(w.shape, dtype), like=w), self.body),
            jax.tree.map(lambda w: vary_tree(jnp.zeros(w.shape, dtype), like=w), self.outer),
            ChunkStats(
                vary_tree(jnp.full((rounds, *stats.max_logit.shape), -jnp.inf), like=stats.max_logit),
                *(jnp.zeros((rounds, *counts.shape), jnp.int32) for counts in stats[1:]),
            ),
            jnp.full(entrance_max.shape, -jnp.inf),
        )
        return vary_tree((buffers, sums), axes=self.axes)

    def _cell(self, row: dict[str, Array], name: str) -> Array:
        return row[name][self.rank]

    def forward(self, buffers: Buffers, row: dict[str, Array]) -> Buffers:
        """Takes what arrived, lets a micro-batch enter, runs a chunk forward and sends its result on."""
        inputs = _put(buffers.inputs, self._cell(row, "arrival_slot"), buffers.arrived)
        entered = row["entrance"]
        slot = jnp.where((entered >= 0) & (self.rank == 0), self._cell(row, "forward_slot"), -1)
        embedded = self._when(entered, self._enter, jnp.zeros_like(buffers.arrived), entered)
        inputs = _put(inputs, slot, embedded)
        micro = micro_batch(self.batch, self._cell(row, "forward"))
        x = inputs[jnp.maximum(self._cell(row, "forward_slot"), 0)]
        (y, _), _ = self.pieces.chunk(_at(self.body, self._cell(row, "forward_round")), x, micro)
        y = vary_tree(y, axes=self.axes)
        return buffers._replace(inputs=inputs, top=y, arrived=lax.ppermute(y, STAGE, self._ring(1)))

    def tick(self, buffers: Buffers, sums: Sums, row: dict[str, Array], *, phase: Phase) -> tuple[Buffers, Sums]:
        """What the phase has of a forward, an exit and a backward."""
        top, cotangents = buffers.top, buffers.cotangents  # of the tick before: what the exit takes now
        if phase.backward:  # sent here, so that it may travel while the forward runs
            returned = lax.ppermute(buffers.returning, STAGE, self._ring(-1))
            cotangents = _put(cotangents, self._cell(row, "cotangent_arrival_slot"), returned)
        if phase.forward:
            buffers = self.forward(buffers, row)
        if phase.exit:
            sums, d_top = self._exit(sums, top, row["exit"])
            cotangents = _put(cotangents, self._cell(row, "exit_slot"), d_top)
        if phase.backward:
            sums, d_x = self._backward(sums, buffers.inputs, cotangents, row)
            sums = self._unembed(sums, d_x, row["unembed"])
            buffers = buffers._replace(returning=d_x)
        return buffers._replace(cotangents=cotangents), sums

    def _exit(self, sums: Sums, top: Array, index: Array) -> tuple[Sums, Array]:
        """Loss of a micro-batch whose last chunk ran at the tick before; all stages together."""

        def loss(outer: Any, y: Array, micro: PackedBatch) -> Array:
            return self.pieces.exit(outer, y, micro) / self.weighing.denominator

        def compute(total: Array, grads: Any, top: Array, index: Array):
            y = lax.psum(jnp.where(self.rank == self.last, top, 0), STAGE)
            value, (d_outer, d_top) = jax.value_and_grad(loss, (0, 1))(self.outer, y, micro_batch(self.batch, index))
            return total + jnp.where(self.rank == 0, value, 0.0), _add(grads, d_outer), d_top

        kept = (sums.loss, sums.outer, jnp.zeros_like(top))
        skip = lambda total, grads, top, index: kept  # noqa: E731
        total, grads, d_top = self._cond(index >= 0, compute, skip, sums.loss, sums.outer, top, index)
        return sums._replace(loss=total, outer=grads), d_top

    def _backward(self, sums: Sums, inputs: Array, cotangents: Array, row: dict[str, Array]) -> tuple[Sums, Array]:
        index, at = self._cell(row, "backward"), jnp.maximum(self._cell(row, "backward_round"), 0)
        live, micro = index >= 0, micro_batch(self.batch, index)
        x = inputs[jnp.maximum(self._cell(row, "backward_slot"), 0)]
        d_y = cotangents[jnp.maximum(self._cell(row, "cotangent_slot"), 0)]

        def chunk(weights: Any, x: Array):
            out, stats = self.pieces.chunk(weights, x, micro)
            return vary_tree(out, axes=self.axes), vary_tree(stats, axes=self.axes)

        (_, balance), pull, stats = jax.vjp(chunk, _at(self.body, at), x, has_aux=True)
        d_balance = jnp.where(live, jnp.full_like(balance, self.weighing.balance), 0.0)
        d_weights, d_x = pull((jnp.where(live, d_y, 0), d_balance))  # an idle cell adds exact zeros
        counts = (total.at[at].add(more) for total, more in zip(sums.stats[1:], stats[1:], strict=True))
        stats = ChunkStats(sums.stats.max_logit.at[at].max(stats.max_logit), *counts)
        body = jax.tree.map(lambda a, g: a.at[at].add(g.astype(a.dtype)), sums.body, d_weights)
        return sums._replace(body=body, stats=stats, balance_loss=sums.balance_loss + balance), d_x

    def _enter(self, index: Array) -> Array:
        return self.pieces.entrance(self.outer, micro_batch(self.batch, index))[0]

    def _unembed(self, sums: Sums, d_x: Array, index: Array) -> Sums:
        """The entrance's gradient, from the cotangent of what it gave to stage 0; all stages together."""

        def compute(grads: Any, most: Array, d_x: Array, index: Array):
            micro = micro_batch(self.batch, index)
            d_entered = lax.psum(jnp.where(self.rank == 0, d_x, 0), STAGE)
            _, pull, max_logit = jax.vjp(lambda outer: self.pieces.entrance(outer, micro), self.outer, has_aux=True)
            return _add(grads, pull(d_entered)[0]), jnp.maximum(most, max_logit)

        skip = lambda grads, most, d_x, index: (grads, most)  # noqa: E731
        arguments = (sums.outer, sums.entrance_max_logit, d_x, index)
        outer, most = self._cond(index >= 0, compute, skip, *arguments)
        return sums._replace(outer=outer, entrance_max_logit=most)

    def _when(self, index: Array, function, otherwise: Array, *arguments: Any) -> Array:
        return self._cond(index >= 0, function, lambda *_: otherwise, *arguments)

    def _cond(self, predicate: Array, function, otherwise, *arguments: Any) -> Any:
        """A branch that every stage takes alike, whose results are marked as different everywhere."""
        mark = lambda branch: lambda *given: vary_tree(branch(*given), axes=self.axes)  # noqa: E731
        return lax.cond(predicate, mark(function), mark(otherwise), *arguments)

    def _ring(self, step: int) -> list[tuple[int, int]]:
        count = self.schedule.stages
        return [(i, (i + step) % count) for i in range(count)]


def _put(buffer: Array, slot: Array, value: Array) -> Array:
    """Writes into a slot; what has none goes to the last, which nobody reads."""
    return lax.dynamic_update_index_in_dim(buffer, value, jnp.where(slot < 0, buffer.shape[0] - 1, slot), 0)


def _at(tree: Any, index: Array) -> Any:
    return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, jnp.maximum(index, 0), 0, keepdims=False), tree)


def _add(sums: Any, more: Any) -> Any:
    return jax.tree.map(lambda a, b: a + b.astype(a.dtype), sums, more)
