"""Grouped-query attention (arXiv:2305.13245) of dense decoders: Llama, SmolLM2, Qwen2 and Qwen3."""

from __future__ import annotations

import jax
from jax import Array
import jax.numpy as jnp

from k2jax.config.schema import ModelConfig
from k2jax.model.linear import from_heads, to_heads
from k2jax.model.norm import rms_norm
from k2jax.model.remat import named
from k2jax.model.rope import rotate_halves
from k2jax.model.spread import max_of_all_heads, rows_of_some_heads, to_parts, tokens_of_all_heads, whole_rows
from pallas_kernels.mla_attention import mla_attention


@jax.named_scope("gqa_projections")
def gqa(
    params: dict, x: Array, rotary: tuple[Array, Array], exit: Array | None, config: ModelConfig
) -> tuple[Array, Array]:
    """One attention layer.

    Args:
        params: this layer's ``attention`` weights.
        x: ``[B, S, D]``, normalised.
        rotary: cosine and sine ``[B, S, head_dim / 2]``.
        exit: ``[B, S]`` int32 mask vector of PackedBatch; None is causal.
        config: the architecture.

    Returns:
        The attention output ``[B, S, D]`` and the maximum logit per query head ``[H]`` float32, scaled and masked.
    """
    cos, sin = (table[:, None] for table in rotary)
    x = to_parts(x, params["q"])
    q, k, v = (project(params, name, x, config) for name in ("q", "k", "v"))
    group = config.heads // config.kv_heads
    with jax.named_scope("attention"):
        (q,) = rows_of_some_heads(rotate_halves(q, cos, sin))
        k, v = rows_of_some_heads(rotate_halves(k, cos, sin), v)
        batch, heads, sequence, _ = q.shape  # of this device
        out, stats = mla_attention(
            q,
            jnp.zeros((batch, heads, sequence, 0), x.dtype),  # no channels with a key of their own for all heads
            jnp.repeat(k, group, axis=1),
            jnp.zeros((batch, sequence, 0), x.dtype),
            jnp.repeat(v, group, axis=1),
            exit=whole_rows(exit),
            scale=config.head_dim**-0.5,
            impl=config.kernels,
        )
    return from_heads(tokens_of_all_heads(out), params["o"]), max_of_all_heads(stats.max_logit)


def project(params: dict, name: str, x: Array, config: ModelConfig) -> Array:
    """Queries, keys or values ``[B, heads, S, head_dim]``, with their bias and norm where they have one."""
    y = to_heads(x, params[name])
    if config.qkv_bias:
        y = y + params[name + "_bias"][:, None]
    y = named(y, name)
    if config.qk_norm and name != "v":
        y = rms_norm(y, params[name + "_norm"], config.norm_eps)
    return y
