"""Folders of four families with generated configs: rotary positions, heads, dtypes, files and keys in many forms.

Each option that is not supported says what its refusal must name; all others must compute what transformers computes.
"""

from __future__ import annotations

import json
from pathlib import Path
import random
from typing import NamedTuple

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from tests.convert.folders import network

FAMILIES = {
    "kimi": ("deepseek_v3", {"num_hidden_layers": 2, "n_routed_experts": 4}),
    "deepseek": ("deepseek_v3", {"num_hidden_layers": 2, "n_routed_experts": 4, "q_lora_rank": None}),
    "llama": ("llama", {}),
    "qwen": ("qwen3", {}),
    "qwen2": ("qwen2", {}),
}
VARIANTS = 60
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_BASE = {"rope_theta": 1e4}


class Option(NamedTuple):
    """A change of a folder, and the words of its refusal where it is not supported."""

    change: dict
    refused: str = ""
    not_with: tuple[str, ...] = ()


_MLA, _DENSE = ("kimi", "deepseek"), ("llama", "qwen", "qwen2")
ROPES = [
    Option({}),
    Option({"rope_theta": 5e5}),
    Option({"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}}),
    Option({"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}, "rope_theta": 5e5}),
    Option({"rope_parameters": {"rope_type": "default"}, "rope_theta": 5e5, "rope_scaling": None}),
    Option({"rope_parameters": _YARN | _BASE}),
    Option({"rope_parameters": _BASE, "rope_scaling": _YARN}),
    Option({"rope_parameters": _YARN | {"factor": 8.0}, "rope_scaling": _YARN, "rope_theta": 300.0}),
    Option({"rope_parameters": _YARN | _BASE, "rope_scaling": {"rope_type": "default"}}),
    Option({"rope_parameters": _YARN | _BASE, "rope_scaling": {}}),
    Option({"rope_scaling": _YARN | {"type": "yarn"}, "rope_theta": 5e5}),
    Option({"rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_theta": 5e5}),
    Option({"rope_scaling": _YARN | {"mscale": 0.7, "mscale_all_dim": 1.0}}),
    Option({"rope_scaling": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 1.0, "beta_slow": 1.0}}),
    Option({"rope_scaling": _YARN | {"mscale_all_dim": 0.5}}),
    Option({"rope_scaling": _YARN | {"mscale": 0.5}}),
    Option({"rope_scaling": _YARN | {"beta_fast": 0, "beta_slow": None, "attention_factor": None}}),
    Option({"rope_scaling": _YARN, "original_max_position_embeddings": 32}),
    Option({"rope_scaling": _YARN | {"factor": 1.0}}),
    Option({"rope_scaling": _LLAMA3}, not_with=_MLA),
    Option({"rope_parameters": _LLAMA3 | _BASE, "rope_scaling": _YARN}),
    Option({"rope_parameters": _YARN | _BASE, "rope_scaling": _LLAMA3}, not_with=_MLA),
    Option({"rope_scaling": _LLAMA3 | {"type": "llama3"}, "rope_theta": 5e5}, not_with=_MLA),
    Option({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_type 'linear'"),
    Option({"rope_parameters": _BASE, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
    Option({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_type 'longrope'"),
    Option({"rope_scaling": _YARN | {"attention_factor": 1.5}}, "attention_factor"),
    Option({"rope_scaling": _YARN | {"truncate": False}}, "truncate"),
    Option({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    Option({"rope_parameters": {"full_attention": _BASE | {"rope_type": "default"}}}, "full_attention"),
]
HEADS = [
    Option({}),
    Option({"tie": False}),
    Option({"tie": True}),
    Option({"tie": True, "head": "equal"}),
    Option({"tie": True, "head": None}),
    Option({"tie": True, "embedding": None}),
    Option({"head": "equal"}),
    Option({"tie": False, "head": None}, "lm_head.weight is missing"),
]
DTYPES = [Option({"dtype": name}) for name in ("float32", "bfloat16", "float16", "mixed")]
FILES = [
    Option({}),
    Option({"shards": 3}),
    Option({"extra": "inv_freq"}),
    Option({"extra": "generation_config.json"}),
    Option({"shards": 2, "extra": "stale shard"}),
    Option({"extra": "model.layers.9.eh_proj.weight"}, not_with=_DENSE),
    Option({"shards": 2, "extra": "model.safetensors"}, "delete what is not the model"),
    Option({"shards": 2, "extra": "lost shard"}, "fetch the missing shard"),
    Option({"extra": "adapter_config.json"}, "adapter"),
    Option({"extra": "model.layers.0.odd.weight"}, "odd.weight is unknown"),
    Option({"extra": "lost norm"}, "model.norm.weight is missing"),
]
KEYS = [
    Option({}),
    Option({"attention_dropout": 0.5, "logits_scaling": 8.0, "some_key": {"a": 1}}),
    Option({"num_key_value_heads": None}, not_with=_DENSE),
    Option({"rms_norm_eps": 1e-5, "initializer_range": 0.1, "torch_dtype": "float16", "pad_token_id": None}),
    Option({"attention_bias": True}, "attention_bias", not_with=("qwen2",)),
    Option({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types", not_with=_MLA),
    Option({"use_sliding_window": True}, "use_sliding_window", not_with=(*_MLA, "llama")),
    Option({"hidden_act": "gelu"}, "hidden_act"),
    Option({"architectures": ["GraniteForCausalLM"]}, "GraniteForCausalLM"),
    Option({"num_hidden_layers": True}, "num_hidden_layers"),
]


class Case(NamedTuple):
    """A written folder, one that transformers reads, and what a refusal must name; empty where there is none."""

    folder: Path
    reference: Path
    refusals: list[str]


def base_folder(folder: Path, family: str) -> tuple[dict, dict[str, np.ndarray]]:
    """Config and tensors of a family as transformers writes them."""
    from tests.convert.folders import tensors_of

    name, changes = FAMILIES[family]
    network(name, **changes).save_pretrained(folder)
    values = json.loads((folder / "config.json").read_text())
    for key in ("rope_parameters", "tie_word_embeddings"):
        values.pop(key, None)
    return values, {key: tensor.numpy() for key, tensor in tensors_of(folder).items()}


def write_case(family: str, variant: int, base: tuple[dict, dict[str, np.ndarray]], folder: Path) -> Case:
    """Writes a generated case of a family: every rope with what is supported, then again with one refusal at most."""
    rng = random.Random(f"{family} {variant}")
    draws = [ROPES[variant % len(ROPES)]]
    for options in (HEADS, DTYPES, FILES, KEYS):
        fitting = [option for option in options if family not in option.not_with]
        if variant < len(ROPES) or any(option.refused for option in draws):
            fitting = [option for option in fitting if not option.refused]
        draws.append(rng.choice(fitting))
    rope, head, dtype, files, keys = draws
    if family in rope.not_with:
        rope = rope._replace(refused="llama3")
    values = dict(base[0])
    if family == "kimi":
        values["model_type"] = "kimi_k2"
    values |= rope.change | keys.change
    if "tie" in head.change:
        values["tie_word_embeddings"] = head.change["tie"]
    tensors = _cast(_headed(base[1], head.change), dtype.change["dtype"], rng)
    _write(folder, values, tensors, files.change)
    reference = folder
    if family == "kimi":  # transformers has no kimi_k2 of its own, whose release brings DeepSeek-V3's code
        reference = folder.with_name(folder.name + "_reference")
        _write(reference, values | {"model_type": "deepseek_v3"}, tensors, files.change)
    return Case(folder, reference, [each.refused for each in (rope, head, files, keys) if each.refused])


def _headed(tensors: dict[str, np.ndarray], change: dict) -> dict[str, np.ndarray]:
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    tensors = dict(tensors)
    if change.get("head", "own") == "equal":
        tensors[head] = tensors[embedding].copy()
    for key, name in (("head", head), ("embedding", embedding)):
        if key in change and change[key] is None:
            del tensors[name]
    return tensors


def _cast(tensors: dict[str, np.ndarray], dtype: str, rng: random.Random) -> dict[str, np.ndarray]:
    kinds = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
    drawn = {name: rng.choice(list(kinds)) if dtype == "mixed" else dtype for name in sorted(tensors)}
    tables = [name for name in ("lm_head.weight", "model.embed_tokens.weight") if name in drawn]
    drawn |= dict.fromkeys(tables, drawn[tables[0]])  # of one dtype, so that equal heads stay equal
    return {name: tensor.astype(kinds[drawn[name]]) for name, tensor in tensors.items()}


def _write(folder: Path, values: dict, tensors: dict[str, np.ndarray], change: dict) -> None:
    folder.mkdir()
    extra, tensors = change.get("extra", ""), dict(tensors)
    if extra == "inv_freq":
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    elif extra == "lost norm":
        del tensors["model.norm.weight"]
    elif extra.endswith(".weight"):
        tensors[extra] = np.ones((3, 3), np.float32)
    names, count = sorted(tensors), change.get("shards", 1)
    files = ["model.safetensors"] if count == 1 else [f"model-{i}-of-{count}.safetensors" for i in range(count)]
    for number, file in enumerate(files):
        save_file({name: tensors[name] for name in names[number::count]}, folder / file, metadata={"format": "pt"})
    if count > 1:
        where = {name: files[i % count] for i, name in enumerate(names)}
        index = {"metadata": {"total_size": 1}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if extra == "lost shard":
        (folder / files[-1]).unlink()
    if extra in ("stale shard", "model.safetensors"):
        other = {name: tensor + np.ones_like(tensor) for name, tensor in tensors.items()}
        save_file(other, folder / ("model-9-of-9.safetensors" if "shard" in extra else extra))
    if extra.endswith(".json"):
        (folder / extra).write_text("{}")
    (folder / "config.json").write_text(json.dumps(values))
