"""Multi-head latent attention (DeepSeek-V2, section 2.1; Kimi K2, section 2.3), in its training form."""

from __future__ import annotations

import jax
from jax import Array

from k2jax.config.schema import ModelConfig
from k2jax.model.collectives import (
    all_gather_sequence,
    heads_to_sequence,
    local_heads,
    scatter_head_maxima,
    sequence_to_heads,
)
from k2jax.model.layer_specs import LayerSpecs
from k2jax.model.linear import from_heads, linear, to_heads
from k2jax.model.norm import LATENT_EPS, rms_norm
from k2jax.model.remat import named
from k2jax.model.rope import rotate_neighbours, softmax_scale
from k2jax.params import Specs
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
    nope = config.mla.qk_nope_dim
    cos, sin = (table[:, None] for table in rotary)
    q_BHSE = queries(params, x, config)
    latent_BSR, k_rope_BSE = latent_and_rope_key(params, x, rotary, config)
    latent_BSR, k_rope_BSE, exit = all_gather_sequence((latent_BSR, k_rope_BSE, exit))
    kv_BHSE = named(to_heads(latent_BSR, local_heads(params["kv_b"], 1)), "kv_up")
    with jax.named_scope("attention"):
        q_nope_BHSE, q_rope_BHSE = sequence_to_heads(
            q_BHSE[..., :nope], rotate_neighbours(q_BHSE[..., nope:], cos, sin)
        )
        out_BHSE, stats = mla_attention(
            q_nope_BHSE,
            q_rope_BHSE,
            kv_BHSE[..., :nope],
            k_rope_BSE,
            kv_BHSE[..., nope:],
            exit=exit,
            scale=softmax_scale(config),
            impl=config.kernels,
        )
    return from_heads(heads_to_sequence(out_BHSE), params["o"]), scatter_head_maxima(stats.max_logit)


def queries(params: dict, x: Array, config: ModelConfig) -> Array:
    """Projects to queries ``[B, H, S, nope + rope]`` before rotation, through the query latent where there is one."""
    if config.mla.q_lora_rank is None:
        return named(to_heads(x, params["q"]), "q")
    latent_BSR = named(linear(x, params["q_a"]), "q_latent")
    normed_BSR = named(rms_norm(latent_BSR, params["q_norm"], LATENT_EPS), "q_latent_normed")
    return named(to_heads(normed_BSR, params["q_b"]), "q_up")


def latent_and_rope_key(
    params: dict, x: Array, rotary: tuple[Array, Array], config: ModelConfig
) -> tuple[Array, Array]:
    """Projects to the normalised latent ``[B, S, kv_lora]`` and the rotated key ``[B, S, rope]`` of all heads.

    The key is never copied for the heads.
    """
    rank = config.mla.kv_lora_rank
    both_BSR = named(linear(x, params["kv_a"]), "kv_latent")
    latent_BSR = named(rms_norm(both_BSR[..., :rank], params["kv_norm"], LATENT_EPS), "kv_latent_normed")
    return latent_BSR, rotate_neighbours(both_BSR[..., rank:], *rotary)


def mla_specs(config: ModelConfig, layers: LayerSpecs) -> Specs:
    """The weights of a run of attention layers, named and laid out as those of ``deepseek_v3`` checkpoints."""
    d, heads, latent = config.d_model, config.heads, config.mla.kv_lora_rank
    q_segments = (("q_nope", config.mla.qk_nope_dim), ("q_rope", config.mla.qk_rope_dim))
    kv_segments = (("k_nope", config.mla.qk_nope_dim), ("v", config.mla.v_dim))
    q_out = {"heads": heads, "qk_dim": config.mla.qk_nope_dim + config.mla.qk_rope_dim}
    specs = {
        "kv_a": layers.weight(
            {"embed": d, "kv_lora_rope": latent + config.mla.qk_rope_dim},
            "embed",
            "kv_lora_rope",
            "self_attn.kv_a_proj_with_mqa.weight",
        ),
        "kv_norm": layers.vector("kv_lora", latent, "self_attn.kv_a_layernorm.weight"),
        "kv_b": layers.weight(
            {"kv_lora": latent, "heads": heads, "kv_dim": config.mla.qk_nope_dim + config.mla.v_dim},
            "kv_lora",
            "heads kv_dim",
            "self_attn.kv_b_proj.weight",
            segments=kv_segments,
        ),
        "o": layers.weight(
            {"heads": heads, "v_dim": config.mla.v_dim, "embed": d}, "heads v_dim", "embed", "self_attn.o_proj.weight"
        ),
    }
    if config.mla.q_lora_rank is None:
        specs["q"] = layers.weight(
            {"embed": d, **q_out}, "embed", "heads qk_dim", "self_attn.q_proj.weight", segments=q_segments
        )
        return specs
    rank = config.mla.q_lora_rank
    specs["q_a"] = layers.weight({"embed": d, "q_lora": rank}, "embed", "q_lora", "self_attn.q_a_proj.weight")
    specs["q_norm"] = layers.vector("q_lora", rank, "self_attn.q_a_layernorm.weight")
    specs["q_b"] = layers.weight(
        {"q_lora": rank, **q_out}, "q_lora", "heads qk_dim", "self_attn.q_b_proj.weight", segments=q_segments
    )
    return specs
