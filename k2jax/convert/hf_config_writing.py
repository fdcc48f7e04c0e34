"""Writes the ``config.json`` with which transformers loads an export."""

from __future__ import annotations

import operator
from typing import Any

from k2jax.config.schema import ModelConfig
from k2jax.convert.hf_config import COMMON_KEYS, MLA_KEYS
from k2jax.convert.hf_rope import rope_parameters
from k2jax.convert.vision_config import write_vision
from k2jax.errors import UserError

POSITIONS = 131072  # context length that an export states for a model without context extension; nothing depends on it


def write_config(
    model: ModelConfig, dtype: str, bos: int | None, eos: int | None, media: dict[str, int]
) -> dict[str, Any]:
    """Returns the values of a ``config.json`` with which transformers loads an export.

    Args:
        model: the architecture.
        dtype: torch's name of the dtype of most weights.
        bos: id that begins a document, if known.
        eos: id that ends a document, if known.
        media: ids of the tokens of images, by their keys, of a model with vision, if known.
    """
    common = {
        "dtype": dtype,
        **_written_fields(model, COMMON_KEYS),
        "hidden_act": "silu",
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tied_head,
        "attention_bias": False,
        "max_position_embeddings": _positions(model),
        "rope_parameters": rope_parameters(model),
        "bos_token_id": bos,
        "eos_token_id": eos,
    }
    values = _ATTENTION_VALUES[model.attention](model) | common
    return write_vision(model, values, media) if model.vision.layers else values


def _mla_values(model: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_key_value_heads": model.heads,
        "q_lora_rank": model.mla.q_lora_rank,
        **_written_fields(model, MLA_KEYS),
        "n_shared_experts": model.moe.shared_experts,
        "moe_layer_freq": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "num_nextn_predict_layers": 0,
    }


def _dense_values(model: ModelConfig) -> dict[str, Any]:
    if model.dense_layers != model.layers or (model.gqa.qkv_bias and model.gqa.qk_norm):
        raise UserError("no Hugging Face architecture mixes grouped-query attention with experts, or biases with norms")
    kind, name = (
        ("qwen2", "Qwen2") if model.gqa.qkv_bias else ("qwen3", "Qwen3") if model.gqa.qk_norm else ("llama", "Llama")
    )
    if kind == "qwen2" and model.gqa.head_dim * model.heads != model.d_model:
        raise UserError("Hugging Face's qwen2 has no head_dim of its own; d_model must be heads x head_dim")
    return {
        "architectures": [f"{name}ForCausalLM"],
        "model_type": kind,
        "num_key_value_heads": model.gqa.kv_heads,
        **({} if kind == "qwen2" else {"head_dim": model.gqa.head_dim}),
    }


def _written_fields(model: ModelConfig, keys: dict[str, str]) -> dict[str, Any]:
    return {key: operator.attrgetter(field)(model) for field, key in keys.items()}


_ATTENTION_VALUES = {"mla": _mla_values, "gqa": _dense_values}


def _positions(model: ModelConfig) -> int:
    for extension in (model.yarn, model.llama3_rope):
        if extension.factor > 1.0:
            return int(extension.original_positions * extension.factor)
    return POSITIONS
