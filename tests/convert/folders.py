"""Hugging Face folders written by transformers and by hand; torch and transformers load where they are needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save_file

if TYPE_CHECKING:
    import torch

SMALL = {"vocab_size": 97, "hidden_size": 48, "num_attention_heads": 4, "max_position_embeddings": 512}
MLA = SMALL | {
    "intermediate_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 3, "num_key_value_heads": 4,
    "n_shared_experts": 1, "n_routed_experts": 8, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8,
    "v_head_dim": 12, "qk_nope_head_dim": 16, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
}  # fmt: skip
DENSE = SMALL | {"intermediate_size": 80, "num_hidden_layers": 2, "num_key_value_heads": 2}
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 64,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
MODELS = {
    "deepseek_v3": ("DeepseekV3", MLA),
    "deepseek_v3 without q_lora, 2 shared experts": ("DeepseekV3", MLA | {"q_lora_rank": None, "n_shared_experts": 2}),
    "deepseek_v3 with yarn and groups": (
        "DeepseekV3", MLA | {"rope_parameters": YARN, "n_group": 4, "topk_group": 2, "rms_norm_eps": 1e-5},
    ),
    "deepseek_v3 with three dense layers, tied": (
        "DeepseekV3", MLA | {"num_hidden_layers": 4, "first_k_dense_replace": 3, "tie_word_embeddings": True},
    ),
    "llama": ("Llama", DENSE),
    "llama with llama3 rope, tied": ("Llama", DENSE | {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", DENSE),
    "qwen3": ("Qwen3", DENSE | {"head_dim": 16}),
}  # fmt: skip


def network(name: str, dtype: torch.dtype | None = None, **changes) -> torch.nn.Module:
    """A tiny random model, float32 by default, without a zero or a one; ``changes`` to its configuration."""
    import torch
    import transformers

    family, values = MODELS[name]
    values = values | changes
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**values, attn_implementation="eager", pad_token_id=None)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if key.endswith(("norm.weight", ".bias", "e_score_correction_bias")):
                tensor.add_(0.1 * torch.randn_like(tensor))
    return model.to(dtype or torch.float32).eval()


def logits(model: torch.nn.Module, tokens: np.ndarray) -> np.ndarray:
    """Float32 logits of int tokens ``[B, S]``."""
    import torch

    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.float().numpy()


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a folder, read by the safetensors library."""
    from safetensors.torch import load_file

    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def write_folder(folder: Path, config: dict, tensors: dict[str, np.ndarray]) -> Path:
    """A one-file folder written by the safetensors library."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder
