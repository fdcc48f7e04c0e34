"""A tiny random Llama in a Hugging Face folder, and its parts in memory."""

import json

import numpy as np
from safetensors.numpy import save_file

from k2jax.text import byte_tokenizer

WIDTH, LAYERS, HEADS, KV_HEADS, FFN = 32, 2, 4, 2, 48


def write(folder, tokenizer=None):
    """The folder, with a vocabulary of bytes unless another one is given."""
    tokenizer = tokenizer or byte_tokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    head = WIDTH // HEADS

    def matrix(rows, columns):
        return (random.standard_normal((rows, columns)) * 0.3).astype(np.float32)

    ones = np.ones(WIDTH, np.float32)
    tensors = {"model.embed_tokens.weight": matrix(tokenizer.vocab_size, WIDTH), "model.norm.weight": ones}
    tensors["lm_head.weight"] = matrix(tokenizer.vocab_size, WIDTH)
    tensors["lm_head.weight"][tokenizer.eos] = 0  # never the most likely: greedy answers do not end
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        tensors |= {at + "input_layernorm.weight": ones.copy(), at + "post_attention_layernorm.weight": ones.copy()}
        for name, rows, columns in (
            ("self_attn.q_proj", WIDTH, WIDTH),
            ("self_attn.k_proj", KV_HEADS * head, WIDTH),
            ("self_attn.v_proj", KV_HEADS * head, WIDTH),
            ("self_attn.o_proj", WIDTH, WIDTH),
            ("mlp.gate_proj", FFN, WIDTH),
            ("mlp.up_proj", FFN, WIDTH),
            ("mlp.down_proj", WIDTH, FFN),
        ):
            tensors[f"{at}{name}.weight"] = matrix(rows, columns)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": tokenizer.vocab_size,
        "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "intermediate_size": FFN, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    tokenizer.save(folder)
    return folder
