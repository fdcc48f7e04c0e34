"""Rotary positions, decoupled and interleaved as in DeepSeek-V3, with YaRN context extension.

The checkpoint pairs neighbouring channels (0,1), (2,3), ...; rotated vectors come out with all first members before all
second members. Queries and keys share that order, so their dot products are those of the interleaved layout.
"""

from __future__ import annotations

import math

from jax import Array
import jax.numpy as jnp
import numpy as np

from k2jax.config.schema import ModelConfig, YarnConfig


def inverse_frequencies(dim: int, theta: float, yarn: YarnConfig) -> np.ndarray:
    """Rotation per token of each channel pair, ``[dim / 2]`` float64 [radians].

    Under YaRN (arXiv:2309.00071, section 3.2) slow frequencies are divided by the factor, fast ones kept, and those
    between the two correction bounds blended linearly.
    """
    inverse = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if yarn.factor <= 1.0:
        return inverse

    def pair_at(rotations: float) -> float:
        """Index of the pair that turns ``rotations`` times over the original context."""
        return dim * math.log(yarn.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_at(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_at(yarn.beta_slow)), dim - 1)
    span = (high - low) or 0.001  # equal bounds make a step, not a division by zero
    interpolated = np.clip((np.arange(dim // 2) - low) / span, 0.0, 1.0)
    return inverse / yarn.factor * interpolated + inverse * (1.0 - interpolated)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def softmax_scale(config: ModelConfig) -> float:
    """``(nope + rope)^-0.5``, times mscale squared under YaRN when ``mscale_all_dim`` is set."""
    scale = (config.qk_nope_dim + config.qk_rope_dim) ** -0.5
    yarn = config.yarn
    return scale * _mscale(yarn.factor, yarn.mscale_all_dim) ** 2 if yarn.mscale_all_dim else scale


def rotary_factor(yarn: YarnConfig) -> float:
    """Factor on cosine and sine: 1 whenever mscale equals mscale_all_dim, as in every published K2 configuration."""
    if yarn.mscale and yarn.mscale_all_dim:
        return _mscale(yarn.factor, yarn.mscale) / _mscale(yarn.factor, yarn.mscale_all_dim)
    return _mscale(yarn.factor, 1.0)


def rotary_table(positions: Array, config: ModelConfig) -> tuple[Array, Array]:
    """Cosine and sine ``[B, S, rope / 2]`` float32 at int32 ``positions [B, S]``."""
    inverse = jnp.asarray(inverse_frequencies(config.qk_rope_dim, config.rope_theta, config.yarn), jnp.float32)
    angles = positions[..., None].astype(jnp.float32) * inverse
    factor = rotary_factor(config.yarn)
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotates channel pairs of ``x [..., rope]`` by tables that broadcast against ``[..., rope / 2]``; dtype kept."""
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
