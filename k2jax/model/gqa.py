"""Grouped-query attention (arXiv:2305.13245) of dense decoders: Llama, SmolLM2, Qwen2 and Qwen3."""

from __future__ import annotations

import dataclasses

import jax
from jax import Array
import jax.numpy as jnp

from k2jax.config.schema import ModelConfig
from k2jax.model.collectives import (
    all_gather_sequence,
    enter_tensor,
    heads_to_sequence,
    scatter_head_maxima,
    sequence_to_heads,
)
from k2jax.model.layer_specs import LayerSpecs
from k2jax.model.linear import from_heads, to_heads
from k2jax.model.norm import rms_norm
from k2jax.model.remat import named
from k2jax.model.rope import rotate_halves
from k2jax.params import Specs
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
    x = enter_tensor(x, params["q"])
    q_BHSE, k_BHSE, v_BHSE = (project(params, name, x, config) for name in ("q", "k", "v"))
    group = config.heads // config.gqa.kv_heads
    with jax.named_scope("attention"):
        (q_BHSE,) = sequence_to_heads(rotate_halves(q_BHSE, cos, sin))
        k_BHSE, v_BHSE = sequence_to_heads(rotate_halves(k_BHSE, cos, sin), v_BHSE)
        batch, heads, sequence, _ = q_BHSE.shape  # of this device
        out_BHSE, stats = mla_attention(
            q_BHSE,
            jnp.zeros((batch, heads, sequence, 0), x.dtype),  # no channels whose key all heads share
            jnp.repeat(k_BHSE, group, axis=1),
            jnp.zeros((batch, sequence, 0), x.dtype),
            jnp.repeat(v_BHSE, group, axis=1),
            exit=all_gather_sequence(exit),
            scale=config.gqa.head_dim**-0.5,
            impl=config.kernels,
        )
    return from_heads(heads_to_sequence(out_BHSE), params["o"]), scatter_head_maxima(stats.max_logit)


def project(params: dict, name: str, x: Array, config: ModelConfig) -> Array:
    """Projects to queries, keys or values ``[B, heads, S, head_dim]``, with bias and norm where the model has them."""
    y_BHSE = to_heads(x, params[name])
    if config.gqa.qkv_bias:
        y_BHSE = y_BHSE + params[name + "_bias"][:, None]
    y_BHSE = named(y_BHSE, name)
    if config.gqa.qk_norm and name != "v":
        y_BHSE = rms_norm(y_BHSE, params[name + "_norm"], config.norm_eps)
    return y_BHSE


def gqa_specs(config: ModelConfig, layers: LayerSpecs) -> Specs:
    """The weights of a run of attention layers, named and laid out as in ``llama``, ``qwen2`` and ``qwen3``."""
    d, width = config.d_model, config.gqa.head_dim
    specs = {
        "o": layers.weight(
            {"heads": config.heads, "head_dim": width, "embed": d}, "heads head_dim", "embed", "self_attn.o_proj.weight"
        )
    }
    keys = ("kv_heads", config.gqa.kv_heads)
    for name, (axis, heads) in (("q", ("heads", config.heads)), ("k", keys), ("v", keys)):
        out = {axis: heads, "head_dim": width}
        segments = ((name, width),)
        hf = f"self_attn.{name}_proj"
        specs[name] = layers.weight({"embed": d, **out}, "embed", f"{axis} head_dim", hf + ".weight", segments=segments)
        if config.gqa.qkv_bias:
            specs[name + "_bias"] = layers.weight(
                out, "", f"{axis} head_dim", hf + ".bias", role="bias", init="zeros", segments=segments
            )
    if config.gqa.qk_norm:
        for name in ("q", "k"):
            norm = layers.vector("head_dim", width, f"self_attn.{name}_norm.weight")
            # The segment says whose width this is: QK-Clip must know that queries and keys are normalised.
            specs[name + "_norm"] = dataclasses.replace(norm, segments=((name, width),))
    return specs
