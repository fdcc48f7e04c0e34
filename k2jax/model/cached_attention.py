"""Attention of new tokens to cached tokens and to each other, for both kinds of attention.

A cache keeps one vector of W numbers per token and layer. MLA's is the latent ``[c_kv | k_r]`` (DeepSeek-V2, section
2.1.2), and attention works on it directly: the key half of the up-projection is absorbed into the queries, the value
half is applied after the weighted sum. The vector of grouped-query attention holds the rotated keys and the values.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.config.schema import ModelConfig
from k2jax.model.gqa import project
from k2jax.model.linear import from_heads
from k2jax.model.mla import latent_and_rope_key, queries
from k2jax.model.rope import rotate_halves, rotate_neighbours, softmax_scale
from pallas_kernels.implementation import resolve
from pallas_kernels.mla_decode import attend, merge, mla_decode


class Visible(NamedTuple):
    """The tokens that new tokens attend to: the cached ones of their sequence, and each other.

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

    def context(self, first: int = 0, last: int | None = None) -> Array:
        """Reads numbers ``first`` to ``last`` of the cached vectors, ``[N, C, last - first]``, C tokens for P pages."""
        pages_NPSW = self.cache[self.layer, self.pages, :, first:last]
        sequences, pages, size, width = pages_NPSW.shape
        return pages_NPSW.reshape(sequences, pages * size, width)

    def is_cached(self) -> Array:
        """Which tokens of the context are real, bool ``[N, 1, C]``."""
        tokens = self.pages.shape[1] * self.cache.shape[2]
        return (jnp.arange(tokens) < self.start[:, None])[:, None]


AttendCached = Callable[[Array, Array, Visible], Array]
"""``attend(q [N, H, T, E], new [N, T, W], visible)``, with the new tokens' cache vectors; returns ``[N, H, T, E]``."""


@jax.named_scope("attention")
def mla_cached(
    params: dict, x: Array, rotary: tuple[Array, Array], visible: Visible, config: ModelConfig
) -> tuple[Array, Array]:
    """Runs MLA in absorbed form.

    Args:
        params: a layer's ``attention`` weights.
        x: ``[N, T, D]``, normalised.
        rotary: cosine and sine ``[N, T, rope / 2]``.
        visible: the tokens that they attend to.
        config: the architecture.

    Returns:
        The output ``[N, T, D]`` and the new tokens' cache vectors ``[N, T, W]``.
    """
    nope, rank = config.mla.qk_nope_dim, config.mla.kv_lora_rank
    cos, sin = (table[:, None] for table in rotary)
    q_NHTE = queries(params, x, config)
    new_NTW = jnp.concatenate(latent_and_rope_key(params, x, rotary, config), axis=-1)
    up_k_RHE, up_v_RHE = params["kv_b"][..., :nope], params["kv_b"][..., nope:]
    absorbed_NHTR = jnp.einsum("nhte,rhe->nhtr", q_NHTE[..., :nope], up_k_RHE)
    q_NHTW = jnp.concatenate([absorbed_NHTR, rotate_neighbours(q_NHTE[..., nope:], cos, sin)], axis=-1)
    if resolve(config.kernels) == "xla":
        context_NCW = visible.context()
        # The values are the first numbers of the keys; the few others are dropped from the sum, since cutting them off
        # every cached vector would copy the context.
        mixed_NHTW = _softmax_attention(
            q_NHTW,
            _Keys(context_NCW, context_NCW, visible.is_cached()),
            _Keys(new_NTW, new_NTW, visible.among_new),
            softmax_scale(config),
        )
        mixed_NHTR = mixed_NHTW[..., :rank]
    else:
        mixed_NHTR = _paged_attention(q_NHTW, new_NTW, visible, config)
    return from_heads(jnp.einsum("nhtr,rhe->nhte", mixed_NHTR, up_v_RHE), params["o"]), new_NTW


def _paged_attention(q_NHTW: Array, new_NTW: Array, visible: Visible, config: ModelConfig) -> Array:
    """Merges the kernel's attention to the cached tokens with that to the new ones; ``[N, H, T, R]``."""
    n, heads, t, _ = q_NHTW.shape
    rank, scale = config.mla.kv_lora_rank, softmax_scale(config)
    q_NQW = q_NHTW.reshape(n, heads * t, -1)
    missing = visible.cache.shape[-1] - q_NQW.shape[-1]  # zeros up to whole lanes: see ``inference.forward``
    old = mla_decode(
        jnp.pad(q_NQW, ((0, 0), (0, 0), (0, missing))),
        visible.cache,
        visible.layer,
        visible.pages,
        visible.start,
        latent=rank,
        scale=scale,
        impl=config.kernels,
    )
    new = attend(q_NQW, new_NTW, jnp.tile(visible.among_new, (1, heads, 1)), rank, scale)
    return merge(old, new).reshape(n, heads, t, rank).astype(q_NHTW.dtype)


@jax.named_scope("attention")
def gqa_cached(
    params: dict, x: Array, rotary: tuple[Array, Array], visible: Visible, config: ModelConfig
) -> tuple[Array, Array]:
    """Runs grouped-query attention, as ``mla_cached``; a key head is read once for its whole group of query heads."""
    cos, sin = (table[:, None] for table in rotary)
    q_NHTE, k_NGTE, v_NGTE = (project(params, name, x, config) for name in ("q", "k", "v"))
    _, heads, t, width = q_NHTE.shape
    groups = config.gqa.kv_heads
    new_NTW = jnp.concatenate([rotate_halves(k_NGTE, cos, sin), v_NGTE], axis=1).swapaxes(1, 2).reshape(len(x), t, -1)

    def by_head(q_NHTE: Array, new_NTW: Array, visible: Visible) -> Array:
        n, half = len(q_NHTE), groups * width

        def split(heads_NCW: Array) -> Array:
            """Key heads as if they were sequences: ``[N * G, C, E]``."""
            return heads_NCW.reshape(n, -1, groups, width).swapaxes(1, 2).reshape(n * groups, -1, width)

        if n == 1:
            context_NCW = visible.context()
            old = split(context_NCW[..., :half]), split(context_NCW[..., half:])
        else:  # read apart, each half is brought into its order by the one pass that gathers it
            old = split(visible.context(0, half)), split(visible.context(half))
        new = split(new_NTW[..., :half]), split(new_NTW[..., half:])
        mixed = _softmax_attention(
            q_NHTE.reshape(n * groups, heads // groups, t, width),
            _Keys(*old, jnp.repeat(visible.is_cached(), groups, axis=0)),
            _Keys(*new, jnp.repeat(visible.among_new, groups, axis=0)),
            width**-0.5,
        )
        return mixed.reshape(n, heads, t, width)

    on_cpu = functools.partial(_heads_together, groups=groups) if t == 1 else by_head
    mixed_NHTE = _by_sequence(by_head, rotate_halves(q_NHTE, cos, sin), new_NTW, visible, on_cpu=on_cpu)
    return from_heads(mixed_NHTE, params["o"]), new_NTW


def _heads_together(q_NHTE: Array, new_NTW: Array, visible: Visible, *, groups: int) -> Array:
    """Attention as ``AttendCached``, with products over all key heads at once where each query has one of them.

    Queries are 0 at the numbers of other key heads, so that cached vectors are read in the order in which they lie.
    That multiplies more and copies nothing: on a CPU a single token takes two thirds to three quarters of the time.
    """
    n, heads, t, width = q_NHTE.shape
    own = jnp.eye(groups, dtype=q_NHTE.dtype)[:, None, None, :, None]
    q_NHTW = (q_NHTE.reshape(n, groups, heads // groups, t, 1, width) * own).reshape(n, heads, t, groups * width)
    half = groups * width
    mixed_NHTW = _softmax_attention(
        q_NHTW,
        _Keys(visible.context(0, half), visible.context(half), visible.is_cached()),
        _Keys(new_NTW[..., :half], new_NTW[..., half:], visible.among_new),
        width**-0.5,
    )
    mixed = mixed_NHTW.reshape(n, groups, heads // groups, t, groups, width)
    return jnp.einsum("ngqtge->ngqte", mixed).reshape(n, heads, t, width)


def _by_sequence(
    attend: AttendCached, q_NHTE: Array, new_NTW: Array, visible: Visible, *, on_cpu: AttendCached
) -> Array:
    """What ``attend`` returns for all sequences; on a CPU ``on_cpu``, of which it does one after the other.

    XLA:CPU copies the keys of all sequences, and multiplies its many small matrices slowly; those of one sequence stay
    in a core's cache. A token of 32 sequences of 200 tokens takes SmolLM2 0.6 times as long.
    """

    def at_once(attend: AttendCached, q_NHTE: Array, new_NTW: Array, *own: Array) -> Array:
        return attend(q_NHTE, new_NTW, Visible(visible.cache, visible.layer, *own))

    def in_turn(*arrays: Array) -> Array:
        if len(q_NHTE) == 1:
            return at_once(on_cpu, *arrays)
        return lax.map(lambda one: at_once(on_cpu, *(array[None] for array in one))[0], arrays)

    arrays = q_NHTE, new_NTW, visible.pages, visible.start, visible.among_new
    return lax.platform_dependent(*arrays, cpu=in_turn, default=functools.partial(at_once, attend))


class _Keys(NamedTuple):
    """Keys ``[N, C, W]``, values ``[N, C, E]`` and mask ``[N, T or 1, C]`` that all heads share."""

    keys: Array
    values: Array
    mask: Array


def _softmax_attention(q_NHTW: Array, old: _Keys, new: _Keys, scale: float) -> Array:
    """Attends to both sets of keys with one softmax; ``[N, H, T, E]``. A query that sees nothing gives 0."""
    n, heads, t, width = q_NHTW.shape
    q_NQW = q_NHTW.reshape(n, heads * t, width)  # one product per sequence, for all heads
    logits_NHTC = [
        jnp.where(
            part.mask[:, None],
            scale
            * jnp.einsum("nqw,ncw->nqc", q_NQW, part.keys, preferred_element_type=jnp.float32).reshape(n, heads, t, -1),
            -jnp.inf,
        )
        for part in (old, new)
    ]
    peak_NHT1 = jnp.maximum(*(part.max(-1, keepdims=True, initial=-jnp.inf) for part in logits_NHTC))
    peak_NHT1 = jnp.where(peak_NHT1 == -jnp.inf, 0.0, peak_NHT1)
    weights_NHTC = [jnp.exp(part - peak_NHT1) for part in logits_NHTC]
    total_NHT1 = sum(part.sum(-1, keepdims=True) for part in weights_NHTC)
    mixed_NHTE = sum(
        jnp.einsum(
            "nqc,nce->nqe",
            weight.reshape(n, heads * t, -1).astype(q_NHTW.dtype),
            part.values,
            preferred_element_type=jnp.float32,
        )
        for weight, part in zip(weights_NHTC, (old, new), strict=True)
    ).reshape(n, heads, t, -1)
    return (mixed_NHTE / jnp.maximum(total_NHT1, 1e-30)).astype(q_NHTW.dtype)
