"""Reads Hugging Face's ``config.json`` into a ModelConfig, in both dialects of rotary positions.

Every value is read from the file. A value that this codebase would compute differently is refused by name, and a key
that the architecture does not have is named to the user.
"""

from __future__ import annotations

import dataclasses
import operator
from pathlib import Path
from typing import Any, NamedTuple

from k2jax.config.replace import replace_keys
from k2jax.config.schema import GQAConfig, ModelConfig, VisionConfig
from k2jax.convert.hf_rope import read_rope
from k2jax.convert.json_values import Values, read_json_object
from k2jax.convert.vision_config import read_vision
from k2jax.errors import UserError, abbreviate

MLA_TYPES = ("deepseek_v3", "kimi_k2")
DENSE_TYPES = ("llama", "qwen2", "qwen3")
WRAPPED_TYPES = ("kimi_k25",)  # vision models: the decoder is text_config, its tensors begin with language_model.
TEXT_PREFIX = "language_model."
_CLASSES = {
    "deepseek_v3": ("DeepseekV3ForCausalLM",),
    "kimi_k2": ("DeepseekV3ForCausalLM", "KimiK2ForCausalLM"),
    "kimi_k25": ("KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"),
    "llama": ("LlamaForCausalLM",),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM",),
}
"""Names in ``architectures`` by model_type; another one is another computation."""

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
_MLA_WITHOUT_EFFECT = ("head_dim", "qk_head_dim")  # transformers computes both from the other widths
_DENSE_WITHOUT_EFFECT = ("sliding_window", "max_window_layers", "rope_interleaved", "is_llama_config")
_WITHOUT_EFFECT = (
    "transformers_version", "torch_dtype", "dtype", "use_cache", "pretraining_tp", "auto_map", "quantization_config",
    "bos_token_id", "eos_token_id", "pad_token_id", "num_nextn_predict_layers",
    "num_mtp_layers", "ep_size", "seq_aux", "aux_loss_alpha", "output_router_logits", "tokenizer_class",
    "transformers.js_config", "return_dict", "output_attentions", "output_hidden_states", "chunk_size_feed_forward",
    "is_encoder_decoder", "id2label", "label2id", "problem_type", "unsloth_fixed", "unsloth_version",
    "model_max_length",
)  # fmt: skip
"""Keys that change no logit: read elsewhere, or of training, of sampling and of the tools that wrote the file."""

# Fields of ModelConfig and the keys that hold their values, in both directions.
COMMON_KEYS = {
    "layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "heads": "num_attention_heads",
    "dense_ffn": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "vocab": "vocab_size",
}
MLA_KEYS = {
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
_LEAST = {"dense_layers": 0}
_MOST = {"layers": 10_000, "dense_layers": 10_000, "heads": 1 << 16, "vocab": 1 << 27, "moe.experts": 1 << 17}
_MOST_WIDTH = 1 << 24
_MOST_EXPERTS_IN_ALL = 1 << 18
"""Of all layers, whose tensors are listed one by one; Kimi K2 has 23,040."""


class HuggingFaceConfig(NamedTuple):
    """A parsed ``config.json`` of a Hugging Face folder.

    Attributes:
        model: the architecture.
        quantization: its ``quantization_config``, or None.
        prefix: the prefix of the decoder's tensor names.
        notes: lines for the user about values that have no effect.
    """

    model: ModelConfig
    quantization: dict | None
    prefix: str
    notes: list[str]


def read_config(folder: Path) -> HuggingFaceConfig:
    """Reads the ``config.json`` of a Hugging Face folder.

    Raises:
        UserError: it is missing or damaged, the architecture is unknown, or a value is not supported.
    """
    path = folder / "config.json"
    values = read_json_object(path)
    try:
        return _parse(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _parse(content: dict[str, Any]) -> HuggingFaceConfig:
    whole, prefix, vision = Values(content), "", VisionConfig()
    kind = _kind(whole, (*MLA_TYPES, *DENSE_TYPES, *WRAPPED_TYPES))
    values, quantization = whole, whole.raw("quantization_config")
    if kind in WRAPPED_TYPES:
        vision, values, prefix = read_vision(content), whole.group("text_config"), TEXT_PREFIX
        if values is None:
            raise UserError("it lacks 'text_config'")
        kind, quantization = _kind(values, (*MLA_TYPES, *DENSE_TYPES)), _one_of(whole, values, "quantization_config")
    if quantization is not None and not isinstance(quantization, dict):
        raise UserError(f"quantization_config must be an object, not {abbreviate(quantization)}")
    tied = whole.flag("tie_word_embeddings", False)
    rope = read_rope(values)
    fields = _mla_fields(values) if kind in MLA_TYPES else _dense_fields(values, kind)
    if kind in MLA_TYPES and rope.llama3.factor != 1.0:
        raise UserError("rope_type 'llama3' is not supported with MLA")
    fields |= {"rope_theta": rope.theta, "yarn": rope.yarn, "llama3_rope": rope.llama3}
    fields |= {"tied_head": values.flag("tie_word_embeddings", tied)}
    fields |= {"init_std": values.number("initializer_range", 0.0, 1.0, 0.02)}
    model = dataclasses.replace(replace_keys(ModelConfig(), fields), vision=vision)
    return HuggingFaceConfig(model, quantization, prefix, rope.notes + _unread(values))


def _kind(values: Values, types: tuple[str, ...]) -> str:
    """The model_type, which the names in ``architectures`` must agree with."""
    kind = values.raw("model_type")
    if kind not in types:
        raise UserError(f"model_type {abbreviate(kind)} is not supported; there are {', '.join(types)}")
    classes = values.raw("architectures")
    names = classes if isinstance(classes, list) else [classes]
    if classes and not any(name in _CLASSES[kind] for name in names):
        raise UserError(f"architectures {abbreviate(classes)} is not that of model_type {kind!r}, {_CLASSES[kind][0]}")
    return kind


def _one_of(outer: Values, inner: Values, key: str) -> Any:
    """A value that stands in the whole file or in its text_config, where both are not allowed to differ."""
    values = [value for value in (outer.raw(key), inner.raw(key)) if value is not None]
    if values[1:] and values[0] != values[1]:
        raise UserError(f"{key} differs between the whole file and text_config; delete the wrong one")
    return values[0] if values else None


def _unread(values: Values) -> list[str]:
    """A line about the keys that the architecture does not have."""
    values.whole("max_position_embeddings", 1, 1 << 40, None)
    values.without_effect(_WITHOUT_EFFECT)
    keys = [key for key in values.unread() if values.peek(key) is not None]
    keys = [key for key in keys if values.peek(key) or not key.endswith("dropout")]
    return [f"config.json has keys that change nothing here: {', '.join(keys)}"] if keys else []


def _mla_fields(values: Values) -> dict[str, Any]:
    for key, supported in _MLA_FIXED.items():
        values.fixed(key, supported)
    fields = _read_fields(values, COMMON_KEYS | MLA_KEYS)
    heads, experts, groups = fields["heads"], fields["moe.experts"], fields["moe.expert_groups"]
    if (values.whole("num_key_value_heads", 1, _MOST["heads"], None) or heads) != heads:
        raise UserError("num_key_value_heads differs from num_attention_heads, which MLA does not have")
    if fields["dense_layers"] > fields["layers"]:
        raise UserError(f"first_k_dense_replace {fields['dense_layers']} is above num_hidden_layers {fields['layers']}")
    if experts * fields["layers"] > _MOST_EXPERTS_IN_ALL:
        raise UserError(f"n_routed_experts {experts} in {fields['layers']} layers are more than {_MOST_EXPERTS_IN_ALL}")
    active_groups = fields["moe.active_groups"]
    reachable = experts // groups * active_groups
    if experts % groups or active_groups > groups or fields["moe.active_experts"] > reachable:
        raise UserError(
            f"num_experts_per_tok {fields['moe.active_experts']} cannot be chosen from topk_group {active_groups} of "
            f"n_group {groups} groups of n_routed_experts {experts}"
        )
    _check_even("qk_rope_head_dim", fields["mla.qk_rope_dim"])
    fields["mla.q_lora_rank"] = values.whole("q_lora_rank", 1, _MOST_WIDTH, None)
    fields["moe.shared_experts"] = values.whole("n_shared_experts", 0, 1 << 10, None) or 0
    values.without_effect(_MLA_WITHOUT_EFFECT)
    return fields


def _dense_fields(values: Values, kind: str) -> dict[str, Any]:
    for key, supported in _DENSE_FIXED.items():
        values.fixed(key, supported)
    if kind != "qwen2":  # which has biases on queries, keys and values, and no key for them
        values.fixed("attention_bias", False)
    layer_types = values.raw("layer_types") or []
    if not isinstance(layer_types, list) or any(each != "full_attention" for each in layer_types):
        raise UserError(f"layer_types {abbreviate(layer_types)} is not supported, only 'full_attention' is")
    fields = _read_fields(values, COMMON_KEYS)
    heads, width = fields["heads"], fields["d_model"]
    default = 128 if kind == "qwen3" else width // heads
    gqa = GQAConfig(
        kv_heads=values.whole("num_key_value_heads", 1, _MOST["heads"], None) or heads,
        head_dim=values.whole("head_dim", 1, _MOST_WIDTH, None) or default,
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
    )
    if heads % gqa.kv_heads:
        raise UserError(f"num_attention_heads {heads} is no multiple of num_key_value_heads {gqa.kv_heads}")
    _check_even("head_dim", gqa.head_dim)
    values.without_effect(_DENSE_WITHOUT_EFFECT)
    return fields | {"dense_layers": fields["layers"], "attention": "gqa", "gqa": gqa}


def _check_even(key: str, width: int) -> None:
    if width < 2 or width % 2:
        raise UserError(f"{key} {width} must be even: rotary positions turn pairs")


def _read_fields(values: Values, keys: dict[str, str]) -> dict[str, Any]:
    """Values of fields of ModelConfig from the keys that hold them, in the types of the fields."""
    fields, defaults = {}, ModelConfig()
    for field, key in keys.items():
        kind = type(operator.attrgetter(field)(defaults))
        if kind is bool:
            fields[field] = values.flag(key)
        elif kind is int:
            fields[field] = values.whole(key, _LEAST.get(field, 1), _MOST.get(field, _MOST_WIDTH))
        elif field == "norm_eps":
            fields[field] = values.number(key, 0.0, 1.0, defaults.norm_eps)
        else:
            fields[field] = values.number(key, 1e-6, 1e6)
    return fields
