"""Dataclasses to a locked ConfigDict and back, with types checked and unknown keys named.

``defaults`` gives experiments something to edit and override; ``resolve`` gives the library something typed and frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import difflib
import json
import math
import types
import typing
from typing import Any

from ml_collections import ConfigDict, config_dict

from k2jax.config import schema
from k2jax.config.activations import POLICIES, check_activations
from k2jax.config.presets import model_preset
from k2jax.errors import UserError

STAGES = ("pretrain", "sft", "rl", "eval")


def defaults(stage: str, model: str = "nano") -> ConfigDict:
    """A locked ConfigDict with every key of ``schema.Config`` at its default, for ``stage`` and a model preset.

    Example:
        >>> config = defaults("pretrain", model="moonlight")
        >>> config.train.steps = 100
    """
    if stage not in STAGES:
        raise UserError(f"unknown stage {stage!r}; there are {', '.join(STAGES)}")
    config = to_config_dict(schema.Config(stage=stage, model=model_preset(model)))
    config.lock()
    config.data.sources.unlock()  # sources come and go by name
    return config


def source(**fields: Any) -> ConfigDict:
    """One entry of ``config.data.sources``: ``source(kind="text", path="books/", weight=2.0)``."""
    known = [field.name for field in dataclasses.fields(schema.SourceConfig)]
    for key in fields:
        if key not in known:
            raise UserError(f"unknown key {key!r} of a data source{nearest(key, known)}")
    return to_config_dict(schema.SourceConfig(**fields))


def to_config_dict(value: Any) -> Any:
    """A dataclass (or mapping of them) as a ConfigDict; optional fields accept both None and their type."""
    if isinstance(value, Mapping):
        return ConfigDict({key: to_config_dict(item) for key, item in value.items()})
    if not dataclasses.is_dataclass(value):
        return value
    types_of = typing.get_type_hints(type(value))
    result = ConfigDict()
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        inner = _optional(types_of[field.name])
        if inner is None:
            result[field.name] = to_config_dict(item)
        else:
            result[field.name] = config_dict.placeholder(inner)
            if item is not None:
                result[field.name] = item
    return result


def resolve(config: ConfigDict | Mapping[str, Any] | schema.Config) -> schema.Config:
    """The frozen, type-checked ``schema.Config`` of an edited ConfigDict (or of a parsed ``config.json``).

    Raises:
        UserError: an unknown key, a value of the wrong type or an impossible combination, in one line that names the
            key and the nearest valid one.
    """
    if not isinstance(config, schema.Config):
        config = _read(schema.Config, config, "")
    _check(config)
    return config


def to_json(config: Any) -> str:
    """The config as indented JSON; ``resolve(json.loads(...))`` is its inverse."""
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def nearest(key: str, known: list[str]) -> str:
    """``"; did you mean 'x'?"``, or the list of what there is."""
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(sorted(known))}" if len(known) <= 12 else ""


def _optional(annotation: Any) -> type | None:
    """T for ``T | None``, else None."""
    if isinstance(annotation, types.UnionType):
        return next(arg for arg in typing.get_args(annotation) if arg is not type(None))
    return None


def _read(annotation: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(annotation):
        return _read_dataclass(annotation, value, path)
    if typing.get_origin(annotation) is Mapping:
        if not isinstance(value, Mapping | ConfigDict) or not len(value):
            raise UserError(f"config.{path} must be a non-empty mapping of names")
        inner = typing.get_args(annotation)[1]
        return {key: _read(inner, value[key], f"{path}.{key}") for key in value}
    inner = _optional(annotation)
    if inner is not None:
        return None if value is None else _read(inner, value, path)
    if typing.get_origin(annotation) is tuple:
        item = typing.get_args(annotation)[0]
        if not isinstance(value, list | tuple):
            raise UserError(f"config.{path} must be a tuple of {item.__name__}, not {value!r}")
        return tuple(_read(item, element, path) for element in value)
    if annotation is float and type(value) is int:
        return float(value)
    if type(value) is not annotation:
        raise UserError(f"config.{path} must be {annotation.__name__}, not {value!r}")
    return value


def _read_dataclass(cls: type, value: Any, path: str) -> Any:
    if not isinstance(value, Mapping | ConfigDict):
        raise UserError(f"config.{path} must be a group of keys, not {value!r}")
    hints = typing.get_type_hints(cls)
    for key in value:
        if key not in hints:
            raise UserError(f"unknown key config.{f'{path}.' if path else ''}{key}{nearest(key, list(hints))}")
    return cls(**{key: _read(hints[key], value[key], f"{path}.{key}" if path else key) for key in value})


_CHOICES = {
    "stage": STAGES,
    "model.attention": ("mla", "gqa"),
    "model.kernels": ("auto", "xla", "pallas", "interpret"),
    "optimizer.name": ("muonclip", "muon", "adamw"),
    "optimizer.momentum_form": ("heavy_ball", "nesterov"),
    "optimizer.newton_schulz": ("muon", "polar_express"),
    "optimizer.newton_schulz_dtype": ("auto", "float32", "bfloat16"),
    "optimizer.schedule.kind": ("wsd", "cosine", "constant"),
    "optimizer.schedule.decay_shape": ("linear", "cosine"),
    "data.tokenizer.kind": ("bpe", "file", "bytes"),
    "data.on_corrupt": ("skip", "fail"),
    "train.compute_dtype": ("auto", "float32", "bfloat16"),
    "parallel.schedule": ("1f1b", "gpipe", "scan"),
    "parallel.expert_backend": ("auto", "dense", "ring", "a2a", "ragged", "dma"),
    "train.gradient_dtype": ("float32", "bfloat16"),
    "train.remat": tuple(POLICIES),
}

_AT_LEAST_ONE = [
    "model.layers",
    "model.d_model",
    "model.heads",
    "model.kv_lora_rank",
    "model.qk_nope_dim",
    "model.qk_rope_dim",
    "model.v_dim",
    "model.kv_heads",
    "model.head_dim",
    "model.dense_ffn",
    "model.expert_ffn",
    "model.vocab",
    "model.experts",
    "model.active_experts",
    "train.steps",
    "train.batch_size",
    "train.micro_batches",
    "parallel.expert",
    "parallel.stage",
    "parallel.tensor",
    "parallel.context",
    "parallel.virtual_stages",
    "parallel.expert_chunks",
    "checkpoint.every",
    "checkpoint.keep",
    "log.every",
    "log.plots_every",
    "eval.every",
    "optimizer.newton_schulz_steps",
]


def _get(config: schema.Config, path: str) -> Any:
    value: Any = config
    for key in path.split("."):
        value = getattr(value, key)
    return value


def _check(config: schema.Config) -> None:
    """Refuses combinations that no single key's type rules out."""
    for path, choices in _CHOICES.items():
        value = _get(config, path)
        if value not in choices:
            raise UserError(f"config.{path} is {value!r}{nearest(value, list(choices))}")
    for path in _AT_LEAST_ONE:
        if _get(config, path) < 1:
            raise UserError(f"config.{path} must be at least 1, not {_get(config, path)}")
    model, train = config.model, config.train
    rows = -(-train.batch_size // train.micro_batches)
    if rows * (train.micro_batches - 1) >= train.batch_size:
        raise UserError(
            f"config.train.batch_size {train.batch_size} leaves the last of {train.micro_batches} micro-batches empty; "
            f"train.micro_batches={-(-train.batch_size // rows)} would do"
        )
    if config.data.sequence_length < 2:
        raise UserError("config.data.sequence_length must be at least 2")
    if not 0 <= model.dense_layers <= model.layers:
        raise UserError(f"config.model.dense_layers {model.dense_layers} is not in 0..{model.layers} (model.layers)")
    _check_attention(config)
    _check_exchange(config)
    check_activations(config)
    if model.experts % model.expert_groups:
        raise UserError(
            f"config.model.experts {model.experts} does not divide into {model.expert_groups} expert_groups"
        )
    reachable = model.experts // model.expert_groups * model.active_groups
    if not 1 <= model.active_groups <= model.expert_groups or model.active_experts > reachable:
        raise UserError(
            f"config.model.active_experts {model.active_experts} cannot be chosen from {reachable} experts: "
            f"{model.active_groups} of {model.expert_groups} groups of {model.experts // model.expert_groups}"
        )
    profile = train.profile_steps
    if profile and not (len(profile) == 2 and 1 <= profile[0] <= profile[1]):
        raise UserError("config.train.profile_steps must be (first, last), e.g. (10, 12)")
    if model.q_lora_rank is not None and model.q_lora_rank < 1:
        raise UserError("config.model.q_lora_rank must be at least 1, or None for queries without a latent")
    if model.shared_experts < 0 or model.capacity_factor <= 0:
        raise UserError("config.model.shared_experts cannot be negative, and capacity_factor must be above 0")
    if not 0 <= config.data.held_out < 1:
        raise UserError(f"config.data.held_out must be in [0, 1), not {config.data.held_out}")


def _check_exchange(config: schema.Config) -> None:
    """The part of ``_check`` that is about tokens on their way to experts."""
    parallel = config.parallel
    if not 1 <= parallel.expert_copies < math.inf:
        raise UserError(f"config.parallel.expert_copies must be finite and at least 1, not {parallel.expert_copies}")
    if not 0 < parallel.expert_slots <= 1:
        raise UserError(f"config.parallel.expert_slots must be in (0, 1], not {parallel.expert_slots}")
    if parallel.expert_slots < 1 and parallel.expert_backend in ("dense", "ring"):
        raise UserError(
            f"config.parallel.expert_slots {parallel.expert_slots} drops nothing with expert_backend "
            f"{parallel.expert_backend}, which sends all tokens to all devices; take auto or a2a"
        )


def _check_attention(config: schema.Config) -> None:
    """The part of ``_check`` that is about attention and rotary positions."""
    model = config.model
    rotary = "qk_rope_dim" if model.attention == "mla" else "head_dim"
    if getattr(model, rotary) % 2:
        raise UserError(f"config.model.{rotary} {getattr(model, rotary)} must be even: rotary positions turn pairs")
    if model.attention == "gqa" and model.heads % model.kv_heads:
        raise UserError(f"config.model.heads {model.heads} does not divide into groups for {model.kv_heads} kv_heads")
    for key in ("qkv_bias", "qk_norm"):
        if getattr(model, key) and model.attention != "gqa":
            raise UserError(f"config.model.{key} needs config.model.attention gqa, not {model.attention}")
    if model.qk_norm and config.optimizer.name == "muonclip":
        raise UserError(
            "config.optimizer.name muonclip cannot clip a model with model.qk_norm: its queries and keys are "
            "normalised after their projections, so that scaling those changes no logit; use muon"
        )
    scaled = model.llama3_rope
    if scaled.factor > 1 and model.yarn.factor > 1:
        raise UserError("config.model.yarn.factor and config.model.llama3_rope.factor cannot both be above 1")
    if scaled.factor > 1 and not 0 < scaled.low_freq_factor < scaled.high_freq_factor:
        raise UserError(
            f"config.model.llama3_rope needs 0 < low_freq_factor < high_freq_factor, not {scaled.low_freq_factor}, "
            f"{scaled.high_freq_factor}"
        )
