"""Attention of new tokens over what a cache holds, for both kinds of attention.

A cache keeps one vector per token and layer. MLA's is the latent ``[c_kv | k_r]`` (DeepSeek-V2, section 2.1.2), and
attention works on it directly: the key half of the up-projection is absorbed into the queries, the value half applied
after the weighted sum. Grouped-query attention's holds its rotated keys and its values.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import Array
import jax.numpy as jnp

from k2jax.config.schema import ModelConfig
from k2jax.model.gqa import project
from k2jax.model.linear import from_heads
from k2jax.model.mla import latent_and_rope_key, queries
from k2jax.model.rope import rotate_halves, rotate_neighbours, softmax_scale
from pallas_kernels.implementation import resolve
from pallas_kernels.mla_decode import attend, merge, mla_decode


class Visible(NamedTuple):
    """What the new tokens of each sequence may see: its cached tokens, and each other.

    Attributes:
        cache: ``[L, pages, page_size, W]``, of all layers.
        layer: int32 ``[]``.
        pages: int32 ``[N, P]``, of each sequence in order.
        start: int32 ``[N]``, cached tokens of each.
        among_new: ``[N, T, T]`` bool, query by key.
    """

    cache: Array
    layer: Array
    pages: Array
    start: Array
    among_new: Array

    def context(self) -> tuple[Array, Array]:
        """The cached vectors ``[N, C, W]``, C tokens for P pages, and where they are real, bool ``[N, 1, C]``."""
        gathered = self.cache[self.layer, self.pages]
        context = gathered.reshape(len(self.pages), -1, gathered.shape[-1])
        return context, (jnp.arange(context.shape[1]) < self.start[:, None])[:, None]


def cache_width(config: ModelConfig) -> int:
    """Numbers per token and layer: 576 for Kimi K2, where plain multi-head attention would keep 64 x (192 + 128)."""
    if config.attention == "mla":
        return config.kv_lora_rank + config.qk_rope_dim
    return 2 * config.kv_heads * config.head_dim


@jax.named_scope("attention")
def mla_cached(
    params: dict, x: Array, rotary: tuple[Array, Array], visible: Visible, config: ModelConfig
) -> tuple[Array, Array]:
    """MLA in absorbed form.

    Args:
        params: a layer's ``attention`` weights.
        x: ``[N, T, D]``, normalised.
        rotary: cosine and sine ``[N, T, rope / 2]``.
        visible: what may be seen.
        config: the architecture.

    Returns:
        The output ``[N, T, D]`` and the new tokens' cache vectors ``[N, T, W]``.
    """
    nope, latent = config.qk_nope_dim, config.kv_lora_rank
    cos, sin = rotary
    q_NHTE = queries(params, x, config)
    c_kv, k_rope = latent_and_rope_key(params, x, rotary, config)
    new_NTW = jnp.concatenate([c_kv, k_rope], axis=-1)
    up_k, up_v = params["kv_b"][..., :nope], params["kv_b"][..., nope:]
    absorbed = jnp.einsum("nhte,rhe->nhtr", q_NHTE[..., :nope], up_k)
    q_NHTW = jnp.concatenate([absorbed, rotate_neighbours(q_NHTE[..., nope:], cos[:, None], sin[:, None])], axis=-1)
    if resolve(config.kernels) == "xla":
        context, in_context = visible.context()
        mixed_NHTR = _softmax_attention(
            q_NHTW,
            _Keys(context, context[..., :latent], in_context),
            _Keys(new_NTW, new_NTW[..., :latent], visible.among_new),
            softmax_scale(config),
        )
    else:
        mixed_NHTR = _paged_attention(q_NHTW, new_NTW, visible, config)
    return from_heads(jnp.einsum("nhtr,rhv->nhtv", mixed_NHTR, up_v), params["o"]), new_NTW


def _paged_attention(q_NHTW: Array, new_NTW: Array, visible: Visible, config: ModelConfig) -> Array:
    """The kernel's attention to the cached tokens merged with that to the new ones; ``[N, H, T, R]``."""
    n, heads, t, _ = q_NHTW.shape
    latent, scale = config.kv_lora_rank, softmax_scale(config)
    q_NQW = q_NHTW.reshape(n, heads * t, -1)
    room = visible.cache.shape[-1] - q_NQW.shape[-1]  # zeros up to whole lanes: see ``forward.empty_cache``
    old = mla_decode(
        jnp.pad(q_NQW, ((0, 0), (0, 0), (0, room))),
        visible.cache,
        visible.layer,
        visible.pages,
        visible.start,
        latent=latent,
        scale=scale,
        impl=config.kernels,
    )
    new = attend(q_NQW, new_NTW, jnp.tile(visible.among_new, (1, heads, 1)), latent, scale)
    return merge(old, new).reshape(n, heads, t, latent).astype(q_NHTW.dtype)


@jax.named_scope("attention")
def gqa_cached(
    params: dict, x: Array, rotary: tuple[Array, Array], visible: Visible, config: ModelConfig
) -> tuple[Array, Array]:
    """Grouped-query attention; as ``mla_cached``. A key head is read once for its whole group of query heads."""
    cos, sin = (table[:, None] for table in rotary)
    q, k, v = (project(params, name, x, config) for name in ("q", "k", "v"))
    n, heads, t, e = q.shape
    kv = config.kv_heads
    new_NTW = jnp.concatenate([rotate_halves(k, cos, sin), v], axis=1).swapaxes(1, 2).reshape(n, t, -1)

    def keys(cached: Array, mask: Array) -> _Keys:
        """Key heads as if they were sequences: ``[N * KV, ...]``."""
        split = cached.reshape(n, -1, 2, kv, e).transpose(2, 0, 3, 1, 4).reshape(2, n * kv, -1, e)
        return _Keys(split[0], split[1], jnp.repeat(mask, kv, axis=0))

    mixed = _softmax_attention(
        rotate_halves(q, cos, sin).reshape(n * kv, heads // kv, t, e),
        keys(*visible.context()),
        keys(new_NTW, visible.among_new),
        e**-0.5,
    )
    return from_heads(mixed.reshape(n, heads, t, e), params["o"]), new_NTW


class _Keys(NamedTuple):
    """Keys ``[N, K, W]``, values ``[N, K, V]`` and mask ``[N, T or 1, K]`` that all heads share."""

    keys: Array
    values: Array
    mask: Array


def _softmax_attention(q_NHTW: Array, old: _Keys, new: _Keys, scale: float) -> Array:
    """One softmax over both sets of keys; ``[N, H, T, V]``. A query that sees nothing gives 0."""
    n, heads, t, w = q_NHTW.shape
    flat = q_NHTW.reshape(n, heads * t, w)  # one product per sequence, for all heads
    logits = [
        jnp.where(
            part.mask[:, None],
            scale
            * jnp.einsum("nqw,nkw->nqk", flat, part.keys, preferred_element_type=jnp.float32).reshape(n, heads, t, -1),
            -jnp.inf,
        )
        for part in (old, new)
    ]
    peak = jnp.maximum(*(part.max(-1, keepdims=True, initial=-jnp.inf) for part in logits))
    peak = jnp.where(peak == -jnp.inf, 0.0, peak)
    weights = [jnp.exp(part - peak) for part in logits]
    total = sum(part.sum(-1, keepdims=True) for part in weights)
    mixed = sum(
        jnp.einsum(
            "nqk,nkv->nqv",
            weight.reshape(n, heads * t, -1).astype(q_NHTW.dtype),
            part.values,
            preferred_element_type=jnp.float32,
        )
        for weight, part in zip(weights, (old, new), strict=True)
    ).reshape(n, heads, t, -1)
    return (mixed / jnp.maximum(total, 1e-30)).astype(q_NHTW.dtype)
