"""MLA flash attention in plain XLA: tiles of scores that live only while they are used, forward and backward.

A tile is a range of queries against a range of keys. Short sequences unroll the tiles, one wide tile per block, so that
nothing above the causal diagonal is computed and no running softmax is needed; long ones loop over square tiles and skip
those in which the exit mask leaves nothing visible. Both walk the same tile functions, ``_attend`` and
``_attend_gradients``; only the walk differs. No tile holds the shared rope key once per head.

Source: FlashAttention-2 (Dao, arXiv:2307.08691), algorithms 1 and 2.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp

UNROLL_UP_TO = 1024
"""Longest sequence whose tiles are unrolled; beyond it the compiled program's size no longer depends on the length."""
UNROLLED_BLOCK = 128
LOOPED_BLOCK = 256


class AttentionStats(NamedTuple):
    """What attention reports beside its output; no gradient flows through it.

    Attributes:
        max_logit: float32 ``[H]``, largest scaled visible logit of the head over batch and sequence, -inf if there is
            none. QK-Clip reads it.
        lse: float32 ``[B, H, S]``, log of the row's sum of exponentiated logits, -inf where nothing is visible.
    """

    max_logit: Array
    lse: Array


class Tiling(NamedTuple):
    """How the score matrix is walked: blocks of ``block`` tokens, unrolled or in a loop. Static under jit."""

    block: int
    unrolled: bool


def default_tiling(length: int) -> Tiling:
    """The tiling for sequences of ``length`` tokens."""
    if length <= UNROLL_UP_TO:
        return Tiling(UNROLLED_BLOCK, unrolled=True)
    return Tiling(LOOPED_BLOCK, unrolled=False)


class _Queries(NamedTuple):
    nope: Array  # [B, H, Q, Dn]
    rope: Array  # [B, H, Q, Dr]


class _Keys(NamedTuple):
    nope: Array  # [B, H, K, Dn]
    rope: Array  # [B, K, Dr]
    v: Array  # [B, H, K, Dv]
    exit: Array | None  # [B, K]


class _Partial(NamedTuple):
    """Softmax over some of the keys, not yet divided by its sum: all float32."""

    values: Array  # [B, H, Q, Dv]
    total: Array  # [B, H, Q]
    peak: Array  # [B, H, Q], -inf where no key is visible


def mla_attention(queries: _Queries, keys: _Keys, scale: float, tiling: Tiling) -> tuple[Array, AttentionStats]:
    out, lse, peak = _attention(queries, keys, scale, tiling)
    return out, AttentionStats(lax.stop_gradient(peak.max((0, 2))), lax.stop_gradient(lse))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _attention(queries, keys, scale, tiling):
    """Output ``[B, H, S, Dv]``, lse ``[B, H, S]`` and row maxima ``[B, H, S]``."""
    walk = _forward_unrolled if tiling.unrolled else _forward_looped
    return walk(queries, keys, scale, tiling.block)


def _attention_fwd(queries, keys, scale, tiling):
    out, lse, peak = _attention(queries, keys, scale, tiling)
    return (out, lse, peak), (queries, keys, out, lse)


def _attention_bwd(scale, tiling, residuals, cotangents):
    queries, keys, out, lse = residuals
    dout = cotangents[0]
    delta = jnp.einsum("bhqd,bhqd->bhq", out, dout, preferred_element_type=jnp.float32)
    walk = _backward_unrolled if tiling.unrolled else _backward_looped
    return walk(queries, keys, (dout, lse, delta), scale, tiling.block)
