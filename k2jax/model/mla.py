"""Multi-head latent attention (DeepSeek-V2, section 2.1; Kimi K2, section 2.3), in its training form."""

from __future__ import annotations

import jax
from jax import Array

from k2jax.config.schema import ModelConfig
from k2jax.model.linear import from_heads, linear, to_heads
from k2jax.model.norm import LATENT_EPS, rms_norm
from k2jax.model.remat import named
from k2jax.model.rope import rotate_neighbours, softmax_scale
from k2jax.model.spread import max_of_all_heads, rows_of_some_heads, some_heads, tokens_of_all_heads, whole_rows
from pallas_kernels.mla_attention import mla_attention


@jax.named_scope("mla_projections")
def mla(
    params: dict, x: Array, rotary: tuple[Array, Array], exit: Array | None, config: ModelConfig
) -> tuple[Array, Array]:
    """One attention layer.

    Args:
        params: this layer's ``attention`` weights.
        x: ``[B, S, D]``, normalised.
        rotary: cosine and sine ``[B, S, rope / 2]``.
        exit: ``[B, S]`` int32 mask vector of PackedBatch; None is causal.
        config: the architecture.

    Returns:
        The attention output ``[B, S, D]`` and the maximum logit per head ``[H]`` float32, scaled and masked.
    """
    nope = config.qk_nope_dim
    cos, sin = rotary
    q = queries(params, x, config)
    c_kv, k_rope = latent_and_rope_key(params, x, rotary, config)
    c_kv, k_rope, exit = whole_rows((c_kv, k_rope, exit))
    kv = named(to_heads(c_kv, some_heads(params["kv_b"], 1)), "kv_up")
    with jax.named_scope("attention"):
        q_nope, q_rope = rows_of_some_heads(q[..., :nope], rotate_neighbours(q[..., nope:], cos[:, None], sin[:, None]))
        out, stats = mla_attention(
            q_nope,
            q_rope,
            kv[..., :nope],
            k_rope,
            kv[..., nope:],
            exit=exit,
            scale=softmax_scale(config),
            impl=config.kernels,
        )
    return from_heads(tokens_of_all_heads(out), params["o"]), max_of_all_heads(stats.max_logit)


def queries(params: dict, x: Array, config: ModelConfig) -> Array:
    """Queries ``[B, H, S, nope + rope]`` before rotation, through the query latent where there is one."""
    if config.q_lora_rank is None:
        return named(to_heads(x, params["q"]), "q")
    latent = named(linear(x, params["q_a"]), "q_latent")
    c_q = named(rms_norm(latent, params["q_norm"], LATENT_EPS), "q_latent_normed")
    return named(to_heads(c_q, params["q_b"]), "q_up")


def latent_and_rope_key(
    params: dict, x: Array, rotary: tuple[Array, Array], config: ModelConfig
) -> tuple[Array, Array]:
    """The normalised latent ``[B, S, kv_lora]`` and the rotated key of all heads ``[B, S, rope]``, never broadcast."""
    c_kv_rope = named(linear(x, params["kv_a"]), "kv_latent")
    c_kv = rms_norm(c_kv_rope[..., : config.kv_lora_rank], params["kv_norm"], LATENT_EPS)
    return named(c_kv, "kv_latent_normed"), rotate_neighbours(c_kv_rope[..., config.kv_lora_rank :], *rotary)
