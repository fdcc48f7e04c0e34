"""The decoder's loss, statistics and gradients of a global batch: one ``shard_map`` around a device's part."""

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
from k2jax.losses import Loss
from k2jax.model import ModelStats
from k2jax.model.feed_forward import Experts
from k2jax.parallel import autodiff_pipeline, one_f_one_b
from k2jax.parallel.accumulate import ACCUMULATE, accumulate, loss_shares
from k2jax.parallel.layout import Layout, entries, padded_shape
from k2jax.parallel.mesh import TOKEN_AXES, batch_partitions
from k2jax.parallel.objective import LossShares, Objective, fold_shares, reduce_shares, undivided
from k2jax.parallel.schedule import Schedule, build_pipeline_schedule
from k2jax.parallel.stage import make_stage, own_experts
from k2jax.params import TEXT, ParamSpec, is_spec, map_specs
from k2jax.sharding import STAGE, TENSOR
from pallas_kernels.expert_exchange import expert_parallel
from pallas_kernels.routed_experts import NAMES
from pallas_kernels.vma import vary_tree

P = PartitionSpec
_EXECUTORS = {"1f1b": one_f_one_b.run, "autodiff": autodiff_pipeline.run}


def make_schedule(config: Config, layout: Layout, micro_batches: int | None = None) -> Schedule | None:
    """The table of a config's pipeline, by default for the micro-batches of a step; None without stages."""
    if layout.stages == 1:
        return None
    micro_batches = micro_batches or config.train.micro_batches
    return build_pipeline_schedule(layout.stages, config.parallel.virtual_stages, layout.chunks, micro_batches)


def make_objective(config: Config, loss: Loss, denominators: dict[str, Array]) -> Objective:
    """The objective of a global batch whose terms have these denominators."""
    return Objective(loss, denominators, config.router.balance_loss / config.train.batch_size)


def make_loss_and_gradients(
    config: Config, layout: Layout, loss: Loss
) -> Callable[..., tuple[LossShares, ModelStats, Any]]:
    """``(params, batch, denominators=None) -> (loss, statistics, gradients)`` over all devices of the layout's mesh.

    Takes the compute copy of the weights, ``[micro-batches, rows, sequence]`` and the denominators of the loss's terms,
    by default those of this batch. Gives the terms and metrics, each over its denominator, statistics over the whole
    batch and gradients of the compute copy: summed over micro-batches and rows, each on the devices that store that
    part of the weight.
    """
    if layout.mesh.size == 1:

        def on_one_device(params: Any, batch: PackedBatch, denominators: dict[str, Array] | None = None):
            denominators = denominators or loss.denominators(batch.targets)
            return accumulate(params, batch, make_objective(config, loss, denominators), config)

        return on_one_device
    local = _without_stages(config, layout) if layout.stages == 1 else _pipelined(config, layout)
    reduced = _reduced(layout)

    def loss_and_gradients(
        params: Any, batch: PackedBatch, denominators: dict[str, Array] | None = None
    ) -> tuple[LossShares, ModelStats, Any]:
        denominators = denominators or loss.denominators(batch.targets)

        def device(params: Any, batch: PackedBatch, denominators: dict[str, Array]):
            return _reduce(layout, reduced, *local(params, batch, make_objective(config, loss, denominators)))

        summed = jax.shard_map(
            device,
            mesh=layout.mesh,
            in_specs=(layout.compute, batch_partitions(layout.mesh, batch), P()),
            out_specs=(P(), _stats_specs(layout), reduced),
        )
        shares, stats, grads = summed(params, batch, denominators)
        return shares, _by_layer(config, layout, stats), grads

    return loss_and_gradients


def make_loss_sums(
    config: Config, layout: Layout, loss: Loss, slots: float = 1.0
) -> Callable[[Any, PackedBatch], LossShares]:
    """``(params, batch) -> sums`` of ``[micro-batches, rows, sequence]``, not divided by denominators: validation.

    By default nothing depends on the room in the exchange of experts, ``slots``.
    """

    def local(params: Any, batch: PackedBatch) -> LossShares:
        experts = make_experts(config, layout, slots)
        objective = undivided(make_objective(config, loss, loss.denominators(batch.targets)))
        if layout.stages == 1:
            params, batch = vary_tree(params, axes=layout.marked_axes), vary_tree(batch, axes=(STAGE,))
            return _each(params, batch, objective, config, experts)
        pipeline = _pipeline(config, layout, experts, objective, len(batch.tokens))
        layers, outside = _split(layout, vary_tree(params, axes=layout.marked_axes))
        return autodiff_pipeline.forward(pipeline, layers, outside, own_experts(batch, *_chunks(layers))).loss

    if layout.mesh.size == 1:
        return lambda params, batch: _each(
            params, batch, undivided(make_objective(config, loss, loss.denominators(batch.targets))), config, None
        )
    return lambda params, batch: jax.shard_map(
        lambda params, batch: reduce_shares(local(params, batch), layout.marked_axes),
        mesh=layout.mesh,
        in_specs=(layout.compute, batch_partitions(layout.mesh, batch)),
        out_specs=P(),
    )(params, batch)


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


def _each(params: Any, batch: PackedBatch, objective: Objective, config: Config, experts: Experts | None) -> LossShares:
    """Sums over micro-batches, one after the other."""
    shares = lax.map(lambda micro: loss_shares(params, micro, objective, config, experts)[0], batch)
    return fold_shares(shares)


def _without_stages(config: Config, layout: Layout):
    """A device's sums where it holds all layers."""

    def local(params: Any, batch: PackedBatch, objective: Objective):
        # Marked as different everywhere, so that differentiation sums over no axis inside the loop.
        params = vary_tree(params, axes=layout.marked_axes)
        batch = vary_tree(batch, axes=(STAGE,))  # of size 1
        experts = make_experts(config, layout, config.parallel.expert_slots)
        shares, stats, grads = accumulate(params, batch, objective, config, experts)
        return shares, tuple(stats), grads

    return local


def _pipelined(config: Config, layout: Layout):
    """A device's sums where layers are divided among stages."""
    executor = _EXECUTORS[config.parallel.executor]

    def local(params: Any, batch: PackedBatch, objective: Objective):
        experts = make_experts(config, layout, config.parallel.expert_slots)
        pipeline = _pipeline(config, layout, experts, objective, len(batch.tokens))
        layers, outside = _split(layout, params)
        sums = executor(pipeline, layers, outside, own_experts(batch, *_chunks(layers)))
        grads = {**sums.outside, layout.layer_group: jax.tree.map(lambda g: g[:, None], sums.layers)}
        max_logit, *counts = (stat[:, None] for stat in sums.stats)
        return sums.loss, (sums.embed_max_logit, max_logit, sums.balance_loss, counts), grads

    return local


def _pipeline(
    config: Config, layout: Layout, experts: Experts | None, objective: Objective, micro_batches: int
) -> one_f_one_b.Pipeline:
    return one_f_one_b.Pipeline(
        make_schedule(config, layout, micro_batches),
        make_stage(config, layout.layer_group, experts, objective),
        ACCUMULATE[config.train.gradient_dtype],
        layout.marked_axes,
    )


def _split(layout: Layout, params: Any) -> tuple[Any, Any]:
    """This stage's layers ``[rounds, layers, ...]``, and the weights around the pipeline."""
    layers = jax.tree.map(lambda leaf: leaf[:, 0], params[layout.layer_group])
    return layers, {name: part for name, part in params.items() if name != layout.layer_group}


def _chunks(layers: Any) -> tuple[int, int]:
    """Chunks of a stage, and layers of a chunk."""
    return layers["attention_norm"].shape[:2]


def _reduced(layout: Layout) -> Any:
    """PartitionSpecs of the reduced gradients: as in storage; where the compute copy is padded, as that is.

    Not over ``tensor`` unless the compute copy is: its devices have equal gradients there, and nothing is to be summed.
    """

    def partition(spec: ParamSpec, storage: PartitionSpec, compute: PartitionSpec) -> PartitionSpec:
        if padded_shape(spec, compute, layout.mesh) != spec.shape:
            return compute
        pairs = zip(entries(spec, compute), entries(spec, storage), strict=True)
        kept = [tuple(axis for axis in axes if axis != TENSOR or axis in own) for own, axes in pairs]
        return P(*(axes or None for axes in kept))

    return map_specs(partition, layout.specs, layout.storage, layout.compute)


def _reduce(
    layout: Layout, reduced: Any, shares: LossShares, stats: tuple, grads: Any
) -> tuple[LossShares, tuple, Any]:
    """Sums over the axes on which devices hold parts of the same sum."""
    axes = layout.marked_axes
    reduce = functools.partial(_reduce_gradient, layout=layout)
    grads = map_specs(reduce, layout.specs, layout.compute, reduced, grads)
    if layout.stages == 1:
        max_logit, *sums = stats
        return reduce_shares(shares, axes), (lax.pmax(max_logit, axes), *lax.psum(sums, axes)), grads
    embed_max_logit, max_logit, balance, counts = stats
    tokens = tuple(axis for axis in TOKEN_AXES if axis in axes)
    stats = (
        lax.pmax(embed_max_logit, tokens),
        lax.pmax(max_logit, tokens),
        lax.psum(balance, axes),
        lax.psum(counts, tokens),
    )
    return reduce_shares(shares, axes), stats, grads


def _reduce_gradient(
    spec: ParamSpec, compute: PartitionSpec, reduced: PartitionSpec, grad: Array, *, layout: Layout
) -> Array:
    current, target = entries(spec, compute), entries(spec, reduced)
    kept = {axis for axes in current for axis in axes}
    parts = [axes[len(own) :] for own, axes in zip(current, target, strict=True)]
    scattered = {axis for axes in parts for axis in axes}
    summed = tuple(axis for axis in layout.marked_axes if axis not in kept | scattered)
    grad = lax.psum(grad, summed) if summed else grad
    for dimension, axes in enumerate(parts):
        if axes:
            grad = lax.psum_scatter(grad, axes, scatter_dimension=dimension, tiled=True)
    return grad


def _stats_specs(layout: Layout) -> tuple:
    heads = TENSOR if TENSOR in layout.mesh.shape else None  # each device has the maxima of its own heads
    if layout.stages == 1:
        return P(None, heads), P(), P(), P()
    return P(None, STAGE), P(None, STAGE, None, heads), P(), P(None, STAGE)


def _by_layer(config: Config, layout: Layout, stats: tuple) -> ModelStats:
    """Statistics in the order of layers."""
    if layout.stages == 1:
        return ModelStats(*stats)
    embed_max_logit, max_logit, balance, (tokens, dropped) = stats
    spec = next(iter(jax.tree.leaves(layout.specs[layout.layer_group], is_leaf=is_spec)))
    layers = config.model.layers - spec.first_layer
    max_logit = max_logit.reshape(-1, max_logit.shape[-1])[:layers]
    if layout.layer_group == "moe" and "dense" in layout.specs:
        max_logit = jnp.concatenate([embed_max_logit[:, : config.model.heads], max_logit])
    tokens = tokens.reshape(-1, config.model.moe.experts)[:layers]
    return ModelStats({TEXT: max_logit}, tokens, balance, dropped.reshape(-1)[:layers])
