"""The weight table: every weight of the decoder, declared once.

Names and layouts on the Hugging Face side are those of ``deepseek_v3`` checkpoints, and with grouped-query attention
those of ``llama``, ``qwen2`` and ``qwen3``.
"""

from __future__ import annotations

from k2jax.config.schema import ModelConfig
from k2jax.model.attention import attention_of
from k2jax.model.layer_specs import LayerSpecs
from k2jax.params import ParamSpec, Specs


def model_specs(config: ModelConfig) -> Specs:
    """The spec tree of a model.

    Returns:
        ``{"embed", "dense", "moe", "final_norm", "head"}``; ``dense`` and ``moe`` hold the weights of the leading dense
        and the following expert layers, stacked over an axis ``layers``, and are absent where there are none, as is
        ``head`` when it is tied to the embedding.
    """
    vocab_shape = (config.vocab, config.d_model)
    specs: Specs = {
        "embed": ParamSpec(
            vocab_shape, ("vocab", "embed"), "embedding", ("vocab",), hf="model.embed_tokens.weight", inputs=("embed",)
        ),
        "final_norm": ParamSpec((config.d_model,), ("embed",), "norm", ("embed",), hf="model.norm.weight", init="ones"),
    }
    if config.dense_layers:
        layers = LayerSpecs(config.dense_layers, first=0)
        specs["dense"] = {**_block(config, layers), "ffn": _swiglu(layers, config.d_model, config.dense_ffn, "mlp")}
    if config.layers > config.dense_layers:
        layers = LayerSpecs(config.layers - config.dense_layers, first=config.dense_layers)
        specs["moe"] = {**_block(config, layers), **_moe(config, layers)}
    if not config.tied_head:
        specs["head"] = ParamSpec(
            vocab_shape, ("vocab", "embed"), "head", ("vocab",), hf="lm_head.weight", inputs=("embed",)
        )
    return specs


def _block(config: ModelConfig, layers: LayerSpecs) -> Specs:
    return {
        "attention_norm": layers.vector("embed", config.d_model, "input_layernorm.weight"),
        "attention": attention_of(config).specs(config, layers),
        "ffn_norm": layers.vector("embed", config.d_model, "post_attention_layernorm.weight"),
    }


def _swiglu(layers: LayerSpecs, d_model: int, hidden: int, hf: str, experts: int | None = None) -> Specs:
    """Gate and up side by side in ``w13 [.., D, 2, F]``, down in ``w2 [.., F, D]``; per expert where ``experts``."""
    stack = {} if experts is None else {"experts": experts}
    prefix = hf if experts is None else hf + ".{experts}"
    return {
        "w13": layers.weight(
            {**stack, "embed": d_model, "gate_up": 2, "ffn": hidden}, "embed", "ffn", prefix + ".{gate_up}.weight"
        ),
        "w2": layers.weight({**stack, "ffn": hidden, "embed": d_model}, "ffn", "embed", prefix + ".down_proj.weight"),
    }


def _moe(config: ModelConfig, layers: LayerSpecs) -> Specs:
    specs = {
        "router": layers.weight(
            {"embed": config.d_model, "experts": config.moe.experts},
            "embed",
            "experts",
            "mlp.gate.weight",
            role="router",
        ),
        "router_bias": layers.vector(
            "experts", config.moe.experts, "mlp.gate.e_score_correction_bias", role="router_bias", init="zeros"
        ),
        "experts": _swiglu(layers, config.d_model, config.moe.expert_ffn, "mlp.experts", config.moe.experts),
    }
    if config.moe.shared_experts:
        hidden = config.moe.expert_ffn * config.moe.shared_experts
        specs["shared"] = _swiglu(layers, config.d_model, hidden, "mlp.shared_experts")
    return specs
