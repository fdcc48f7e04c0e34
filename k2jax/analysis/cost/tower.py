"""Memory of the tower on images, counted from its traced program."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from k2jax.config.schema import ModelConfig
from k2jax.data.images.packing import empty_rows
from k2jax.model.vision import vision_features, vision_specs
from k2jax.params import abstract
from pallas_kernels.implementation import target_platform


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
