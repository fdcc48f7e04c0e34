"""Loss, statistics and gradients of a global batch on a mesh: one ``shard_map`` around a device's part."""

from __future__ import annotations

from collections.abc import Callable
import functools
import math
from typing import Any

import jax
from jax import Array, lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from k2jax.batch import PackedBatch
from k2jax.config.schema import Config
from k2jax.model import ModelStats
from k2jax.model.feed_forward import Experts
from k2jax.parallel import circular, one_f_one_b
from k2jax.parallel.accumulate import ACCUMULATE, accumulate, nll_sum
from k2jax.parallel.layout import Layout, entries, padded_shape
from k2jax.parallel.mesh import TOKEN_AXES, batch_partition
from k2jax.parallel.pieces import STAGE, make_pieces
from k2jax.parallel.schedule import Schedule, build
from k2jax.params import ParamSpec, is_spec, map_specs
from k2jax.sharding import TENSOR
from pallas_kernels.expert_exchange import expert_parallel
from pallas_kernels.routed_experts import NAMES
from pallas_kernels.varying import vary_tree

P = PartitionSpec
_EXECUTORS = {"1f1b": one_f_one_b.run, "gpipe": one_f_one_b.run, "scan": circular.run}


def make_schedule(config: Config, layout: Layout) -> Schedule | None:
    """The table of a config's pipeline; None without stages."""
    if layout.stages == 1:
        return None
    kind = "gpipe" if config.parallel.schedule == "gpipe" else "1f1b"
    return build(kind, layout.stages, config.parallel.virtual_stages, layout.chunks, config.train.micro_batches)


def make_loss_and_gradients(
    config: Config, layout: Layout
) -> Callable[[Any, PackedBatch], tuple[Array, ModelStats, Any]]:
    """``(params, batch) -> (loss, statistics, gradients)`` over all devices of the layout's mesh.

    Takes the compute copy of the weights and ``[micro-batches, rows, sequence]``, and gives the mean nll per target,
    statistics over the whole batch and gradients of the compute copy: summed over micro-batches and rows, each on the
    devices that keep that part of the weight at rest.
    """
    if layout.mesh.size == 1:
        return lambda params, batch: accumulate(params, batch, batch.weights.sum(), config)
    local = _without_stages(config, layout) if layout.stages == 1 else _pipelined(config, layout)
    reduced = _reduced(layout)

    def loss_and_gradients(params: Any, batch: PackedBatch) -> tuple[Array, ModelStats, Any]:
        summed = jax.shard_map(
            lambda params, batch, denominator: _reduce(layout, reduced, *local(params, batch, denominator)),
            mesh=layout.mesh,
            in_specs=(layout.compute, batch_partition(layout.mesh), P()),
            out_specs=(P(), _stats_specs(layout), reduced),
        )
        loss, stats, grads = summed(params, batch, batch.weights.sum())
        return loss, _by_layer(config, layout, stats), grads

    return loss_and_gradients


def make_nll_sum(config: Config, layout: Layout) -> Callable[[Any, PackedBatch], Array]:
    """``(params, batch) -> sum of weighted nll [nats]`` of ``[micro-batches, rows, sequence]``, for validation."""
    if layout.mesh.size == 1:
        return lambda params, batch: _each(params, batch, config, None)

    axes = layout.marked_axes

    def local(params: Any, batch: PackedBatch) -> Array:
        experts = make_experts(config, layout, slots=1.0)  # a held-out loss does not depend on the room in an exchange
        if layout.stages == 1:
            return lax.psum(_each(*vary_tree((params, batch), axes=axes), config, experts), axes)
        count = batch.tokens.shape[0]
        schedule = build("1f1b", layout.stages, config.parallel.virtual_stages, layout.chunks, count)
        body, outer = _split(layout, vary_tree(params, axes=axes))
        weighing = one_f_one_b.Weighing(jnp.ones(()), 0.0)
        pieces = make_pieces(config, layout.body, experts)
        return lax.psum(circular.forward(schedule, pieces, body, outer, batch, weighing, axes)[0], axes)

    return jax.shard_map(
        local, mesh=layout.mesh, in_specs=(layout.compute, batch_partition(layout.mesh)), out_specs=P()
    )


def make_experts(config: Config, layout: Layout, slots: float) -> Experts | None:
    """The routed experts over the mesh's axis ``expert``; None where each device has all of them.

    ``slots`` is the room for rows from one device to another, over the device's tokens; 1 drops none.
    """
    ranks = layout.mesh.shape["expert"]
    if ranks == 1:
        return None
    parallel = config.parallel

    def experts(x: Array, w13: Array, w2: Array, expert_ids: Array, gates: Array) -> tuple[Array, Array]:
        tokens, copies = (-(-count // parallel.expert_chunks) for count in (len(x), expert_ids.size))
        return expert_parallel(
            x,
            w13,
            w2,
            expert_ids,
            gates,
            axis_name="expert",
            backend=parallel.expert_backend,
            chunks=parallel.expert_chunks,
            slots=math.ceil(slots * tokens),
            max_copies=int(parallel.expert_copies * copies),  # the mean rank computes as many as it sends
            impl=config.model.kernels,
            store_fp8=tuple(name for name in config.train.store_fp8 if name in NAMES),
        )

    return experts


def _each(params: Any, batch: PackedBatch, config: Config, experts: Experts | None) -> Array:
    """Over micro-batches, one after the other."""
    return lax.map(lambda micro: nll_sum(params, micro, config, experts)[0], batch).sum()


def _without_stages(config: Config, layout: Layout):
    """A device's sums where it holds all layers."""

    def local(params: Any, batch: PackedBatch, denominator: Array):
        # Marked as different everywhere, so that differentiation sums over no axis inside the loop.
        params = vary_tree(params, axes=layout.marked_axes)
        batch = vary_tree(batch, axes=(STAGE,))  # of size 1
        experts = make_experts(config, layout, config.parallel.expert_slots)
        loss, stats, grads = accumulate(params, batch, denominator, config, experts)
        return loss, tuple(stats), grads

    return local


def _pipelined(config: Config, layout: Layout):
    """A device's sums where layers are spread over stages."""
    schedule, executor = make_schedule(config, layout), _EXECUTORS[config.parallel.schedule]
    balance = config.router.balance_loss / config.train.batch_size

    def local(params: Any, batch: PackedBatch, denominator: Array):
        pieces = make_pieces(config, layout.body, make_experts(config, layout, config.parallel.expert_slots))
        weighing = one_f_one_b.Weighing(denominator, balance)
        body, outer = _split(layout, params)
        dtype = ACCUMULATE[config.train.gradient_dtype]
        sums = executor(schedule, pieces, body, outer, batch, weighing, dtype, layout.marked_axes)
        grads = {**sums.outer, layout.body: jax.tree.map(lambda g: g[:, None], sums.body)}
        max_logit, *counts = (stat[:, None] for stat in sums.stats)
        return sums.loss, (sums.entrance_max_logit, max_logit, sums.balance_loss, counts), grads

    return local


def _split(layout: Layout, params: Any) -> tuple[Any, Any]:
    """This stage's layers ``[rounds, layers, ...]``, and the weights around the pipeline."""
    body = jax.tree.map(lambda leaf: leaf[:, 0], params[layout.body])
    return body, {name: part for name, part in params.items() if name != layout.body}


def _reduced(layout: Layout) -> Any:
    """As at rest; where the compute copy is padded, as that is.

    Not over ``tensor`` unless the compute copy is: its devices have that gradient alike, and there is nothing to sum.
    """

    def one(spec: ParamSpec, rest: PartitionSpec, compute: PartitionSpec) -> PartitionSpec:
        if padded_shape(spec, compute, layout.mesh) != spec.shape:
            return compute
        pairs = zip(entries(spec, compute), entries(spec, rest), strict=True)
        kept = [tuple(axis for axis in axes if axis != TENSOR or axis in own) for own, axes in pairs]
        return P(*(axes or None for axes in kept))

    return map_specs(one, layout.specs, layout.rest, layout.compute)


def _reduce(layout: Layout, reduced: Any, loss: Array, stats: tuple, grads: Any) -> tuple[Array, tuple, Any]:
    """Sums over the axes on which devices have parts of the same thing."""
    axes = layout.marked_axes
    reduce = functools.partial(_reduce_gradient, layout=layout)
    grads = map_specs(lambda spec, *rest: reduce(spec, *rest), layout.specs, layout.compute, reduced, grads)
    if layout.stages == 1:
        max_logit, *sums = stats
        return lax.psum(loss, axes), (lax.pmax(max_logit, axes), *lax.psum(sums, axes)), grads
    entrance, max_logit, balance, counts = stats
    tokens = tuple(axis for axis in TOKEN_AXES if axis in axes)
    stats = (
        lax.pmax(entrance, tokens),
        lax.pmax(max_logit, tokens),
        lax.psum(balance, axes),
        lax.psum(counts, tokens),
    )
    return lax.psum(loss, axes), stats, grads


def _reduce_gradient(
    spec: ParamSpec, compute: PartitionSpec, reduced: PartitionSpec, grad: Array, *, layout: Layout
) -> Array:
    scattered: set[str] = set()
    here, wanted = entries(spec, compute), entries(spec, reduced)
    kept = {axis for axes in here for axis in axes}
    parts = [axes[len(own) :] for own, axes in zip(here, wanted, strict=True)]
    scattered = {axis for axes in parts for axis in axes}
    rest = tuple(axis for axis in layout.marked_axes if axis not in kept | scattered)
    grad = lax.psum(grad, rest) if rest else grad
    for at, axes in enumerate(parts):
        if axes:
            grad = lax.psum_scatter(grad, axes, scatter_dimension=at, tiled=True)
    return grad


def _stats_specs(layout: Layout) -> tuple:
    heads = TENSOR if TENSOR in layout.mesh.shape else None  # each device has the maxima of its own
    if layout.stages == 1:
        return P(None, heads), P(), P(), P()
    return P(None, STAGE), P(None, STAGE, None, heads), P(), P(None, STAGE)


def _by_layer(config: Config, layout: Layout, stats: tuple) -> ModelStats:
    """Statistics in the order of layers."""
    if layout.stages == 1:
        return ModelStats(*stats)
    entrance, max_logit, balance, (tokens, dropped) = stats
    spec = next(iter(jax.tree.leaves(layout.specs[layout.body], is_leaf=is_spec)))
    layers = config.model.layers - spec.first_layer
    max_logit = max_logit.reshape(-1, max_logit.shape[-1])[:layers]
    if layout.body == "moe" and "dense" in layout.specs:
        max_logit = jnp.concatenate([entrance[:, : config.model.heads], max_logit])
    tokens = tokens.reshape(-1, config.model.experts)[:layers]
    return ModelStats(max_logit, tokens, balance, dropped.reshape(-1)[:layers])
