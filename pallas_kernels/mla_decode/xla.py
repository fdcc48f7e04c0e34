"""Attention over a paged latent cache in plain JAX: the pages are gathered, then attended to as one context."""

from __future__ import annotations

from typing import NamedTuple

from jax import Array
import jax.numpy as jnp


class Partial(NamedTuple):
    """Attention over some of the keys.

    Attributes:
        out: float32 ``[N, Q, R]``, the softmax-weighted values; 0 where nothing is seen.
        lse: float32 ``[N, Q]``, log of the sum of exponentiated logits; -inf where nothing is seen.
    """

    out: Array
    lse: Array


def merge(a: Partial, b: Partial) -> Array:
    """Attention over the keys of both, float32 ``[N, Q, R]``."""
    peak = jnp.maximum(a.lse, b.lse)
    peak = jnp.where(peak == -jnp.inf, 0.0, peak)
    of_a, of_b = jnp.exp(a.lse - peak)[..., None], jnp.exp(b.lse - peak)[..., None]
    return (of_a * a.out + of_b * b.out) / jnp.maximum(of_a + of_b, 1e-30)


def attend(q: Array, keys: Array, mask: Array, latent: int, scale: float) -> Partial:
    """Attention of ``q [N, Q, W]`` over ``keys [N, K, W]`` where ``mask [N, Q or 1, K]`` is True."""
    logits = jnp.einsum("nqw,nkw->nqk", q, keys, preferred_element_type=jnp.float32)
    logits = jnp.where(mask, scale * logits, -jnp.inf)
    peak = logits.max(-1, keepdims=True, initial=-jnp.inf)
    weights = jnp.exp(logits - jnp.where(peak == -jnp.inf, 0.0, peak))
    total = weights.sum(-1, keepdims=True)
    values = jnp.where(mask.any(-2)[..., None], keys[..., :latent], 0)
    out = jnp.einsum("nqk,nkr->nqr", weights.astype(q.dtype), values, preferred_element_type=jnp.float32)
    lse = jnp.where(peak == -jnp.inf, 0.0, peak)[..., 0] + jnp.log(total[..., 0])
    return Partial(out / jnp.maximum(total, 1e-30), lse)


def mla_decode(
    q: Array, cache: Array, layer: Array | int, pages: Array, lengths: Array, latent: int, scale: float
) -> Partial:
    """``pallas_kernels.mla_decode.mla_decode``."""
    context = cache[layer, pages].reshape(len(q), -1, cache.shape[-1])
    mask = jnp.arange(context.shape[1]) < lengths[:, None, None]
    return attend(q, context, mask, latent, scale)
