"""Converts Hugging Face's ``config.json`` to ModelConfig and back, in both dialects of rotary positions.

Every value is read from the file. A value that this codebase would compute differently is refused by name.
"""

from __future__ import annotations

import dataclasses
import json
import operator
from pathlib import Path
from typing import Any, NamedTuple

from k2jax.config.replace import replace_keys
from k2jax.config.schema import GQAConfig, Llama3RopeConfig, ModelConfig, VisionConfig, YarnConfig
from k2jax.convert.vision_config import read_vision, write_vision
from k2jax.errors import UserError

MLA_TYPES = ("deepseek_v3", "kimi_k2")
DENSE_TYPES = ("llama", "qwen2", "qwen3")
WRAPPED_TYPES = ("kimi_k25",)  # vision models: the decoder is text_config, its tensors begin with language_model.
TEXT_PREFIX = "language_model."
POSITIONS = 131072  # context length that an export states for a model without context extension; nothing depends on it

# The value of each key in a file that has it; another value means another architecture.
_MLA_FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
    "rope_interleave": True,
}
_DENSE_FIXED = {"hidden_act": "silu", "mlp_bias": False, "use_sliding_window": False}


# Fields of ModelConfig and the keys that hold their values, in both directions.
_COMMON_KEYS = {
    "layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "heads": "num_attention_heads",
    "dense_ffn": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "vocab": "vocab_size",
}
_MLA_KEYS = {
    "dense_layers": "first_k_dense_replace",
    "mla.kv_lora_rank": "kv_lora_rank",
    "mla.qk_nope_dim": "qk_nope_head_dim",
    "mla.qk_rope_dim": "qk_rope_head_dim",
    "mla.v_dim": "v_head_dim",
    "moe.expert_ffn": "moe_intermediate_size",
    "moe.experts": "n_routed_experts",
    "moe.active_experts": "num_experts_per_tok",
    "moe.expert_groups": "n_group",
    "moe.active_groups": "topk_group",
    "moe.routed_scaling": "routed_scaling_factor",
    "moe.normalize_gates": "norm_topk_prob",
}


class HuggingFaceConfig(NamedTuple):
    """A parsed ``config.json`` of a Hugging Face folder.

    Attributes:
        model: the architecture.
        quantization: its ``quantization_config``, or None.
        prefix: the prefix of the decoder's tensor names.
    """

    model: ModelConfig
    quantization: dict | None
    prefix: str


def read_config(folder: Path) -> HuggingFaceConfig:
    """Reads the ``config.json`` of a Hugging Face folder.

    Raises:
        UserError: it is missing or damaged, the architecture is unknown, or a value is not supported.
    """
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("not an object")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give a Hugging Face folder") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}; fetch it again") from error
    try:
        return _parse(values)
    except KeyError as error:
        raise UserError(f"{path} lacks {error.args[0]!r}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} has a value of the wrong kind: {error}") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _parse(values: dict[str, Any]) -> HuggingFaceConfig:
    kind, prefix, vision = values.get("model_type"), "", VisionConfig()
    if kind in WRAPPED_TYPES:
        vision = read_vision(values)
        values, prefix = values["text_config"], TEXT_PREFIX
        kind = values.get("model_type")
    if kind in MLA_TYPES:
        model = _mla_model(values)
    elif kind in DENSE_TYPES:
        model = _dense_model(values, kind)
    else:
        known = ", ".join((*MLA_TYPES, *DENSE_TYPES, *WRAPPED_TYPES))
        raise UserError(f"model_type {kind!r} is not supported; there are {known}")
    model = dataclasses.replace(model, vision=vision)
    return HuggingFaceConfig(model, values.get("quantization_config"), prefix)


def _mla_model(values: dict[str, Any]) -> ModelConfig:
    _check_fixed(values, _MLA_FIXED)
    theta, yarn, llama3 = _rope(values)
    if llama3.factor != 1.0:
        raise UserError("rope_type 'llama3' is not supported with MLA")
    heads = int(values["num_attention_heads"])
    if values.get("num_key_value_heads", heads) != heads:
        raise UserError("num_key_value_heads differs from num_attention_heads, which MLA does not have")
    rank = values["q_lora_rank"]
    fields = _read_fields(values, _COMMON_KEYS | _MLA_KEYS) | _optional_fields(values)
    fields |= {"mla.q_lora_rank": None if rank is None else int(rank)}
    fields |= {"moe.shared_experts": int(values["n_shared_experts"] or 0), "rope_theta": theta, "yarn": yarn}
    return replace_keys(ModelConfig(), fields)


def _dense_model(values: dict[str, Any], kind: str) -> ModelConfig:
    _check_fixed(values, _DENSE_FIXED | ({} if kind == "qwen2" else {"attention_bias": False}))
    theta, yarn, llama3 = _rope(values)
    fields = _read_fields(values, _COMMON_KEYS) | _optional_fields(values)
    heads, width = fields["heads"], fields["d_model"]
    gqa = GQAConfig(
        kv_heads=int(values.get("num_key_value_heads") or heads),
        head_dim=int(values.get("head_dim") or width // heads),
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
    )
    fields |= {"dense_layers": fields["layers"], "attention": "gqa", "gqa": gqa}
    return replace_keys(ModelConfig(), fields | {"rope_theta": theta, "yarn": yarn, "llama3_rope": llama3})


def _read_fields(values: dict[str, Any], keys: dict[str, str]) -> dict[str, Any]:
    """Values of fields of ModelConfig from the keys that hold them, in the types of the fields."""
    defaults = ModelConfig()
    return {field: type(operator.attrgetter(field)(defaults))(values[key]) for field, key in keys.items()}


def _optional_fields(values: dict[str, Any]) -> dict[str, Any]:
    """Fields whose keys may be missing."""
    return {
        "tied_head": bool(values.get("tie_word_embeddings", False)),
        "init_std": float(values.get("initializer_range", 0.02)),
    }


def _check_fixed(values: dict[str, Any], fixed: dict[str, Any]) -> None:
    for key, wanted in fixed.items():
        if values.get(key, wanted) != wanted:
            raise UserError(f"{key} {values[key]!r} is not supported, only {wanted!r} is")


def _rope(values: dict[str, Any]) -> tuple[float, YarnConfig, Llama3RopeConfig]:
    """Rotary base and context extension, read from ``rope_theta`` and ``rope_scaling`` or from ``rope_parameters``."""
    scaling = values.get("rope_parameters") or values.get("rope_scaling") or {}
    theta = float(scaling["rope_theta"] if "rope_theta" in scaling else values["rope_theta"])
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    yarn, llama3 = YarnConfig(), Llama3RopeConfig()
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError("partial_rotary_factor is not supported")
    if kind == "yarn":
        if scaling.get("attention_factor") is not None or scaling.get("truncate", True) is not True:
            raise UserError("YaRN with attention_factor or without truncate is not supported")
        yarn = YarnConfig(
            factor=float(scaling["factor"]),
            beta_fast=float(scaling.get("beta_fast") or 32.0),
            beta_slow=float(scaling.get("beta_slow") or 1.0),
            mscale=float(scaling.get("mscale") or 0.0),
            mscale_all_dim=float(scaling.get("mscale_all_dim") or 0.0),
            original_positions=int(
                scaling.get("original_max_position_embeddings") or values["max_position_embeddings"]
            ),
        )
    elif kind == "llama3":
        llama3 = Llama3RopeConfig(
            factor=float(scaling["factor"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
            original_positions=int(scaling["original_max_position_embeddings"]),
        )
    elif kind != "default":
        raise UserError(f"rope_type {kind!r} is not supported; default, yarn and llama3 are")
    return theta, yarn, llama3


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
        **_written_fields(model, _COMMON_KEYS),
        "hidden_act": "silu",
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tied_head,
        "attention_bias": False,
        "max_position_embeddings": _positions(model),
        "rope_parameters": _rope_parameters(model),
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
        **_written_fields(model, _MLA_KEYS),
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


def _rope_parameters(model: ModelConfig) -> dict[str, Any]:
    values: dict[str, Any] = {"rope_type": "default", "rope_theta": model.rope_theta}
    if model.yarn.factor > 1.0:
        values |= {
            "rope_type": "yarn",
            "factor": model.yarn.factor,
            "beta_fast": model.yarn.beta_fast,
            "beta_slow": model.yarn.beta_slow,
            "original_max_position_embeddings": model.yarn.original_positions,
        }
        values |= {key: getattr(model.yarn, key) for key in ("mscale", "mscale_all_dim") if getattr(model.yarn, key)}
    elif model.llama3_rope.factor > 1.0:
        values |= {
            "rope_type": "llama3",
            "factor": model.llama3_rope.factor,
            "low_freq_factor": model.llama3_rope.low_freq_factor,
            "high_freq_factor": model.llama3_rope.high_freq_factor,
            "original_max_position_embeddings": model.llama3_rope.original_positions,
        }
    return values


def _positions(model: ModelConfig) -> int:
    for extension in (model.yarn, model.llama3_rope):
        if extension.factor > 1.0:
            return int(extension.original_positions * extension.factor)
    return POSITIONS
