"""The decoupled encoder process (Kimi K2.5, section 4.5.1): the tower runs apart from the decoder, on all devices.

A step computes the features of all images of its batch, balanced over the devices by the data, and keeps nothing else
of the tower. The decoder runs as it does for text, whatever its parallelism; its gradient of the features adds up over
micro-batches. Then the tower's forward runs again, row of patches by row (short rows several at once), and its backward
on the same devices. A model without a tower is the decoder alone.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
from jax import Array, lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from k2jax.batch import PackedBatch, PatchBatch
from k2jax.config.schema import Config, ModelConfig
from k2jax.losses import Loss
from k2jax.model import ModelStats
from k2jax.model.vision import vision_features
from k2jax.parallel.accumulate import ACCUMULATE, FEATURES
from k2jax.parallel.contrast import make_contrast
from k2jax.parallel.gradients import make_loss_and_gradients, make_loss_sums
from k2jax.parallel.layout import Layout
from k2jax.parallel.objective import LossShares
from k2jax.params import TEXT, VISION, ParamSpec, by_group, from_groups
from k2jax.sharding import STAGE
from pallas_kernels.vma import vary_tree

P = PartitionSpec
TOWER = "decoupled_tower"
"""Named scope of the tower's passes, apart from the decoder's."""
PATCHES_AT_ONCE = 4096
"""Rows are computed together up to this number of patches, one after the other beyond."""


def make_gradients(config: Config, layout: Layout, loss: Loss) -> Callable[..., tuple[LossShares, ModelStats, Any]]:
    """``(params, batch, denominators) -> (loss, statistics, gradients)`` of all weights, over all devices.

    Without a tower these are ``make_loss_and_gradients``; with one the batch has patches, and the statistics are those
    of both groups of layers.
    """
    if VISION not in layout.specs:
        return make_loss_and_gradients(config, layout, loss)
    forward, backward = make_tower(config.model, layout), make_tower_backward(config, layout)
    contrast = make_contrast(config, layout) if config.model.vision.contrast else None

    def gradients(
        params: Any, batch: PackedBatch, denominators: dict[str, Array]
    ) -> tuple[LossShares, ModelStats, Any]:
        text, vision = (by_group(params)[group] for group in (TEXT, VISION))
        patches, rows, d_learned = batch.patches, batch.replace(patches=None), {}
        with jax.named_scope(TOWER):
            features, max_logit = forward(vision, patches)
        decoder = make_loss_and_gradients(config, with_features(layout, len(features)), loss)
        shares, stats, grads = decoder({**text, FEATURES: features}, rows, denominators)
        stats, grads = stats._replace(max_logit=stats.max_logit | {VISION: max_logit}), dict(grads)
        d_features = grads.pop(FEATURES).astype(features.dtype)
        if contrast:
            beside = contrast(text, vision["contrast"], features, rows)
            shares = shares._replace(terms={**shares.terms, "contrast": beside.term})
            grads = jax.tree.map(lambda a, b: a + b.astype(a.dtype), grads, beside.text)
            d_features, d_learned = d_features + beside.features, {"contrast": beside.learned}
        if {"tower", "projector"} <= set(config.optimizer.frozen):
            return shares, stats, from_groups({TEXT: grads, VISION: jax.tree.map(jnp.zeros_like, vision)})
        # Without the barrier the compiler would find that it knows this forward, and would keep its residuals.
        vision, patches, d_features = lax.optimization_barrier((vision, patches, d_features))
        with jax.named_scope(TOWER):
            d_vision = {**backward(vision, patches, d_features), **d_learned}
        return shares, stats, from_groups({TEXT: grads, VISION: d_vision})

    return gradients


def make_sums(
    config: Config, layout: Layout, loss: Loss, slots: float = 1.0
) -> Callable[[Any, PackedBatch], LossShares]:
    """``(params, batch) -> sums`` as ``make_loss_sums`` gives them; with a tower the batch has patches."""
    if VISION not in layout.specs:
        return make_loss_sums(config, layout, loss, slots)
    forward = make_tower(config.model, layout)

    def sums(params: Any, batch: PackedBatch) -> LossShares:
        groups = by_group(params)
        features, _ = forward(groups[VISION], batch.patches)
        decoder = make_loss_sums(config, with_features(layout, len(features)), loss, slots)
        return decoder({**groups[TEXT], FEATURES: features}, batch.replace(patches=None))

    return sums


def make_tower(model: ModelConfig, layout: Layout) -> Callable[[Any, PatchBatch], tuple[Array, Array]]:
    """``(vision weights, patches [R, P]) -> (features [R P / 4, D], max logit [layers, heads])``, on all devices.

    Rows are computed one after the other, so that the memory is that of one row; short rows together, so that products
    are not small.
    """

    def local(params: Any, patches: PatchBatch) -> tuple[Array, Array]:
        output = lax.map(lambda rows: vision_features(params, rows, model), _in_turn(patches, patches.start.shape[1]))
        return output.features.reshape(-1, output.features.shape[-1]), output.max_logit.max(0)

    if layout.mesh.size == 1:
        return local
    axes = layout.mesh.axis_names

    def on_device(params: Any, patches: PatchBatch) -> tuple[Array, Array]:
        features, max_logit = local(vary_tree(params, axes=axes), patches)
        return features, lax.pmax(max_logit, axes)

    return jax.shard_map(
        on_device, mesh=layout.mesh, in_specs=(layout.compute[VISION], P(axes)), out_specs=(P(axes), P())
    )


def make_tower_backward(config: Config, layout: Layout) -> Callable[[Any, PatchBatch, Array], Any]:
    """``(vision weights, patches [R, P], gradient of the features [R P / 4, D]) -> gradients``, summed over devices."""
    dtype = ACCUMULATE[config.train.gradient_dtype]

    def local(params: Any, patches: PatchBatch, d_features: Array) -> Any:
        def add(sums: Any, rows: tuple[PatchBatch, Array]) -> tuple[Any, None]:
            patches, d_rows = rows
            features_of = lambda params: vision_features(params, patches, config.model).features  # noqa: E731
            _, pull = jax.vjp(features_of, params)
            return jax.tree.map(lambda a, g: a + g.astype(dtype), sums, pull(d_rows)[0]), None

        d_rows = d_features.reshape(len(patches.start), -1, d_features.shape[-1])
        zeros = jax.tree.map(lambda p: vary_tree(jnp.zeros(p.shape, dtype), like=p), params)
        return lax.scan(add, zeros, _in_turn((patches, d_rows), patches.start.shape[1]))[0]

    if layout.mesh.size == 1:
        return local
    axes = layout.mesh.axis_names

    def on_device(params: Any, patches: PatchBatch, d_features: Array) -> Any:
        return lax.psum(local(vary_tree(params, axes=axes), patches, d_features), axes)

    specs = (layout.compute[VISION], P(axes), P(axes))
    return jax.shard_map(on_device, mesh=layout.mesh, in_specs=specs, out_specs=layout.compute[VISION])


def rows_at_once(rows: int, length: int) -> int:
    """How many of a device's rows of ``length`` patches the tower computes together, in every turn as many."""
    limit = max(1, PATCHES_AT_ONCE // length)
    return max(count for count in range(1, min(rows, limit) + 1) if rows % count == 0)


def with_features(layout: Layout, count: int) -> Layout:
    """The layout of the decoder with a table of features as one more weight beside its embedding.

    Stages share out its rows as they do the embedding's; without stages every device has the table. Its gradient is
    scattered to all devices.
    """
    width = layout.logical["embed"].shape[-1]
    spec = ParamSpec((count, width), ("features", "embed"), "embedding", ("features",), hf="", inputs=("embed",))
    rest = tuple(axis for axis in layout.marked_axes if axis != STAGE)
    text = layout.text
    return dataclasses.replace(
        text,
        specs={**text.specs, FEATURES: spec},
        storage={**text.storage, FEATURES: P((STAGE, *rest))},
        compute={**text.compute, FEATURES: P(STAGE) if layout.stages > 1 else P()},
    )


def _in_turn(tree: Any, length: int) -> Any:
    """Leaves ``[R, ...]`` of rows of ``length`` patches as ``[turns, rows at once, ...]``."""
    rows = len(jax.tree.leaves(tree)[0])
    at_once = rows_at_once(rows, length)
    return jax.tree.map(lambda leaf: leaf.reshape(rows // at_once, at_once, *leaf.shape[1:]), tree)
