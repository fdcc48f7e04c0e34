"""Attention to a paged latent cache in plain JAX: the pages are gathered and attended to as one context."""

from __future__ import annotations

from typing import NamedTuple

from jax import Array
import jax.numpy as jnp


class PagedCache(NamedTuple):
    """Arguments of ``mla_decode`` that describe the cache.

    Attributes:
        latents_LPSW: pages of S tokens of every layer.
        layer: int32 ``[]``, the layer to read.
        pages_NM: int32, pages of each sequence.
        lengths_N: int32, number of cached tokens of each sequence.
    """

    latents_LPSW: Array
    layer: Array | int
    pages_NM: Array
    lengths_N: Array


class Partial(NamedTuple):
    """Attention to some of the keys.

    Attributes:
        out: float32 ``[N, Q, R]``, softmax-weighted values; 0 for a query that sees no key.
        lse: float32 ``[N, Q]``, log of the sum of exponentiated logits; -inf for a query that sees no key.
    """

    out: Array
    lse: Array


def merge(a: Partial, b: Partial) -> Array:
    """Attention to the keys of both, float32 ``[N, Q, R]``."""
    peak_NQ = jnp.maximum(a.lse, b.lse)
    peak_NQ = jnp.where(peak_NQ == -jnp.inf, 0.0, peak_NQ)
    weight_a_NQ1, weight_b_NQ1 = jnp.exp(a.lse - peak_NQ)[..., None], jnp.exp(b.lse - peak_NQ)[..., None]
    return (weight_a_NQ1 * a.out + weight_b_NQ1 * b.out) / jnp.maximum(weight_a_NQ1 + weight_b_NQ1, 1e-30)


def attend(q: Array, keys: Array, mask: Array, latent: int, scale: float) -> Partial:
    """Attention of ``q [N, Q, W]`` to ``keys [N, K, W]`` where ``mask [N, Q or 1, K]`` is True."""
    logits_NQK = jnp.einsum("nqw,nkw->nqk", q, keys, preferred_element_type=jnp.float32)
    logits_NQK = jnp.where(mask, scale * logits_NQK, -jnp.inf)
    peak_NQ1 = logits_NQK.max(-1, keepdims=True, initial=-jnp.inf)
    weights_NQK = jnp.exp(logits_NQK - jnp.where(peak_NQ1 == -jnp.inf, 0.0, peak_NQ1))
    total_NQ1 = weights_NQK.sum(-1, keepdims=True)
    values_NKR = jnp.where(mask.any(-2)[..., None], keys[..., :latent], 0)
    out_NQR = jnp.einsum("nqk,nkr->nqr", weights_NQK.astype(q.dtype), values_NKR, preferred_element_type=jnp.float32)
    lse_NQ = jnp.where(peak_NQ1 == -jnp.inf, 0.0, peak_NQ1)[..., 0] + jnp.log(total_NQ1[..., 0])
    return Partial(out_NQR / jnp.maximum(total_NQ1, 1e-30), lse_NQ)


def mla_decode(q: Array, paged: PagedCache, latent: int, scale: float) -> Partial:
    """``pallas_kernels.mla_decode.mla_decode`` in plain JAX."""
    latents_LPSW, layer, pages_NM, lengths_N = paged
    context_NKW = latents_LPSW[layer, pages_NM].reshape(len(q), -1, latents_LPSW.shape[-1])
    mask_N1K = jnp.arange(context_NKW.shape[1]) < lengths_N[:, None, None]
    return attend(q, context_NKW, mask_N1K, latent, scale)
