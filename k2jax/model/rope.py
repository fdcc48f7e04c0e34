"""Rotary positions, with the context extensions of YaRN and Llama 3.

MLA's decoupled channels are interleaved as in DeepSeek-V3: the checkpoint pairs neighbours (0,1), (2,3), ...; rotated
vectors come out with all first members before all second members. Queries and keys share that order, so their dot
products are those of the interleaved layout. Grouped-query models pair channel i with i + d/2 and keep their order.
"""

from __future__ import annotations

import math

from jax import Array
import jax.numpy as jnp
import numpy as np

from k2jax.config.schema import Llama3RopeConfig, ModelConfig, YarnConfig


def inverse_frequencies(config: ModelConfig) -> np.ndarray:
    """Computes the rotation per token of each channel pair, ``[rotary_dim / 2]`` float64 [radians]."""
    dim = config.attention_widths.rotary_dim
    inverse = config.rope_theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if config.yarn.factor > 1.0:
        return _yarn(inverse, config.rope_theta, config.yarn)
    return _llama3(inverse, config.llama3_rope) if config.llama3_rope.factor > 1.0 else inverse


def _yarn(inverse: np.ndarray, theta: float, yarn: YarnConfig) -> np.ndarray:
    """YaRN (arXiv:2309.00071, section 3.2): slow frequencies are divided by the factor, fast ones kept.

    Those between the two correction bounds are blended linearly in the pair's index.
    """
    dim = 2 * len(inverse)

    def pair_at(rotations: float) -> float:
        """Index of the pair that turns ``rotations`` times over the original context."""
        return dim * math.log(yarn.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_at(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_at(yarn.beta_slow)), dim - 1)
    span = (high - low) or 0.001  # equal bounds make a step, not a division by zero
    interpolated = np.clip((np.arange(dim // 2) - low) / span, 0.0, 1.0)
    return inverse / yarn.factor * interpolated + inverse * (1.0 - interpolated)


def _llama3(inverse: np.ndarray, scaling: Llama3RopeConfig) -> np.ndarray:
    """Llama 3.1: the same with a blend that is linear in the rotations over the original context."""
    rotations = scaling.original_positions * inverse / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = np.clip((rotations - scaling.low_freq_factor) / span, 0.0, 1.0)
    return inverse / scaling.factor * (1.0 - kept) + inverse * kept


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def softmax_scale(config: ModelConfig) -> float:
    """MLA's ``(nope + rope)^-0.5``, times mscale squared under YaRN when ``mscale_all_dim`` is set."""
    scale = (config.mla.qk_nope_dim + config.mla.qk_rope_dim) ** -0.5
    yarn = config.yarn
    return scale * _mscale(yarn.factor, yarn.mscale_all_dim) ** 2 if yarn.mscale_all_dim else scale


def rotary_factor(yarn: YarnConfig) -> float:
    """YaRN's factor on cosine and sine: 1 whenever mscale equals mscale_all_dim, as in every published K2 model."""
    if yarn.mscale and yarn.mscale_all_dim:
        return _mscale(yarn.factor, yarn.mscale) / _mscale(yarn.factor, yarn.mscale_all_dim)
    return _mscale(yarn.factor, 1.0)


def rotary_table(positions: Array, config: ModelConfig) -> tuple[Array, Array]:
    """Cosine and sine ``[B, S, rope / 2]`` float32 at int32 ``positions [B, S]``."""
    inverse = jnp.asarray(inverse_frequencies(config), jnp.float32)
    angles = positions[..., None].astype(jnp.float32) * inverse
    factor = rotary_factor(config.yarn)
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def rotate_neighbours(x: Array, cos: Array, sin: Array) -> Array:
    """Rotates the channel pairs (0,1), (2,3), ... of ``x [..., rope]``; their first members come out first.

    Args:
        x: ``[..., rope]``.
        cos: broadcasts against ``[..., rope / 2]``, float32.
        sin: as ``cos``.

    Returns:
        ``[..., rope]`` in the dtype of ``x``.
    """
    pairs = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    return _rotate(pairs[..., 0], pairs[..., 1], cos, sin)


def rotate_halves(x: Array, cos: Array, sin: Array) -> Array:
    """The same for the pairs (i, i + rope/2), in the order of ``x``."""
    half = x.shape[-1] // 2
    return _rotate(x[..., :half], x[..., half:], cos, sin)


def _rotate(first: Array, second: Array, cos: Array, sin: Array) -> Array:
    dtype = first.dtype
    first, second = first.astype(jnp.float32), second.astype(jnp.float32)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(dtype)
