"""Memory and time of the tower on images, counted from traced programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from k2jax.aot.cost.hbm import shard_bytes
from k2jax.aot.cost.jaxpr_flops import LoopCost
from k2jax.aot.cost.roofline import device_seconds
from k2jax.chips import Chip
from k2jax.config.schema import Config, ModelConfig
from k2jax.data.images.patch_packing import empty_rows
from k2jax.model.vision import vision_features, vision_specs
from k2jax.model.vision.specs import MERGED
from k2jax.parallel.accumulate import ACCUMULATE
from k2jax.parallel.decoupled import TOWER, rows_at_once
from k2jax.params import abstract, count
from pallas_kernels.implementation import target_platform


class TowerShare(NamedTuple):
    """What tower and projector take of a training step on one device.

    Attributes:
        rows: rows of patches of a step.
        length: patches of a row.
        memory: bytes by what they hold.
        kept: bytes that the tower's backward pass reads of its forward pass on all rows: held while the decoder runs,
            if the encoder were not decoupled.
        flops: executed in a step: forward, forward again, backward, rows of padding included.
        seconds: of the step's estimate.
    """

    rows: int
    length: int
    memory: dict[str, float]
    kept: float
    flops: float
    seconds: float


def tower_share(
    config: Config, chip: Chip, mesh: Any, params: Any, patches: Any, loops: Iterable[LoopCost]
) -> TowerShare:
    """The tower's part of a traced step.

    Args:
        config: the experiment, in the dtypes of a TPU.
        chip: of the devices.
        mesh: of the devices.
        params: the step's weights, ShapeDtypeStructs with shardings.
        patches: the step's, ShapeDtypeStructs.
        loops: of the step.
    """
    rows, length = patches.start.shape[0] // mesh.size, patches.start.shape[1]
    features = mesh.size * rows * length // MERGED // mesh.shape.get("stage", 1) * config.model.d_model
    weights, wide = count(vision_specs(config.model)), jnp.dtype(ACCUMULATE[config.train.gradient_dtype]).itemsize
    narrow = jnp.dtype(config.train.compute_dtype).itemsize
    residuals = residual_bytes(config.model, length)  # of one row
    memory = {
        "weights at rest": shard_bytes(params["vision"]),
        "weights to compute with": weights * narrow,
        "their gradient, at the end": weights * wide,
        "features, while the decoder runs": features * narrow,
        "their gradient, while the decoder runs": features * wide,
        "residuals of the rows at once, at the end": rows_at_once(rows, length) * residuals,
    }
    own = [loop for loop in loops if loop.scope == TOWER]
    flops = sum(loop.times * loop.cost.flops for loop in own)
    seconds = sum(loop.times * max(device_seconds(chip, loop.cost.flops, loop.cost.bytes)) for loop in own)
    return TowerShare(rows, length, memory, rows * residuals, flops, seconds)


def residual_bytes(model: ModelConfig, length: int) -> int:
    """Bytes that the tower's backward pass reads of its forward pass on one row of patches, in bfloat16.

    Args:
        model: the architecture, with vision.
        length: patches of the row.
    """
    params = abstract(vision_specs(model), jnp.bfloat16)
    row = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, empty_rows(1, length, model.vision.patch)))

    def pullback(params, row):
        return jax.vjp(lambda params: vision_features(params, row, model).features, params)[1]

    with target_platform("tpu"):
        kept = jax.tree.leaves(jax.eval_shape(pullback, params, row))
    # The weights are read too, and are there in any case.
    return sum(map(_bytes, kept)) - sum(map(_bytes, jax.tree.leaves(params)))


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    return leaf.size * leaf.dtype.itemsize
