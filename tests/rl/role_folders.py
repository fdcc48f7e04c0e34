"""Checkpoints that answer as roles: Hugging Face folders of tiny random models of bytes, written without a program."""

import numpy as np

from k2jax.text import byte_tokenizer
from tests.convert.folders import write_folder

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32,
    "intermediate_size": 48, "max_position_embeddings": 512, "num_attention_heads": 2, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "torch_dtype": "float32", "vocab_size": 258,
}  # fmt: skip


def write_role(folder, seed, tokenizer=None, layers=2):
    """A model of some layers whose weights are drawn from a seed."""
    rng, wide, inner = np.random.default_rng(seed), LLAMA["hidden_size"], LLAMA["intermediate_size"]
    shapes = {f"self_attn.{part}_proj": (wide, wide) for part in "qkvo"}
    shapes |= {"mlp.gate_proj": (inner, wide), "mlp.up_proj": (inner, wide), "mlp.down_proj": (wide, inner)}
    shapes |= {"input_layernorm": (wide,), "post_attention_layernorm": (wide,)}
    named = {f"model.layers.{layer}.{name}.weight": shape for layer in range(layers) for name, shape in shapes.items()}
    named |= {"model.embed_tokens.weight": (LLAMA["vocab_size"], wide), "model.norm.weight": (wide,)}
    tensors = {name: (0.3 * rng.standard_normal(shape)).astype(np.float32) for name, shape in named.items()}
    (tokenizer or byte_tokenizer()).save(folder)
    return str(write_folder(folder, LLAMA | {"num_hidden_layers": layers}, tensors))
