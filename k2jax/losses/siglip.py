"""The pairwise sigmoid loss of images and texts (SigLIP, arXiv:2303.15343, equation 1 of section 3).

It is no ``Loss``: that is a sum over tokens, turns or branches of single rows, of log-probabilities, and this one is
over pairs of hidden states of a whole batch. ``parallel.contrast`` brings both sides together.
"""

from __future__ import annotations

import math

import jax
from jax import Array
import jax.numpy as jnp

SCALE, BIAS = math.log(10.0), -10.0
"""Logarithm of the temperature's inverse, and the bias, where learning begins; what is learned is added to them."""
_LEAST = 1e-12  # squared length of a vector, below which it has no direction


def siglip_sum(
    image_ND: Array, text_GD: Array, own_ND: Array, valid_N: Array, valid_G: Array, learned: dict[str, Array]
) -> Array:
    """Sums of the loss over pairs of some images with all texts; sums of parts of the images add up.

    ``- sum over i, j of log sigmoid(s_ij (exp(SCALE + scale) cos(image_i, text_j) + BIAS + bias))``, s being 1 where
    both are of one sample and -1 elsewhere. SigLIP divides by the number of samples.

    Args:
        image_ND: image of each sample, of any length.
        text_GD: texts of all samples of the batch, these among them.
        own_ND: of these, the text of each image.
        valid_N: bool, which samples there are.
        valid_G: bool, which texts there are.
        learned: ``scale`` and ``bias`` ``[1]``.

    Returns:
        ``[]`` float32.
    """
    image_ND, text_GD, own_ND = (_direction(vectors) for vectors in (image_ND, text_GD, own_ND))
    more = {name: value[0].astype(jnp.float32) for name, value in learned.items()}
    scale, bias = jnp.exp(SCALE + more["scale"]), BIAS + more["bias"]
    logits_NG = scale * jnp.einsum("nd,gd->ng", image_ND, text_GD, precision="highest") + bias
    own_N = scale * (image_ND * own_ND).sum(-1) + bias
    # As if no text were the image's own; then -log sigmoid(-z) is put right to -log sigmoid(z), which is less by z.
    others = jnp.where(valid_N[:, None] & valid_G, jax.nn.softplus(logits_NG), 0.0).sum()
    return others - jnp.where(valid_N, own_N, 0.0).sum()


def _direction(vectors: Array) -> Array:
    vectors = vectors.astype(jnp.float32)
    return vectors * jax.lax.rsqrt((vectors * vectors).sum(-1, keepdims=True) + _LEAST)
