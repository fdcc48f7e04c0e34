"""A tiny random ``kimi_k25`` of transformers, and the same numbers in k2jax through a folder that it wrote."""

from __future__ import annotations

import numpy as np
import torch
from transformers import Kimi_K25Config, Kimi_K25ForConditionalGeneration

from k2jax.data.images.patch_packing import PatchChunk

PATCH, IMAGE, VIDEO = 4, 90, 91
TEXT = {
    "model_type": "deepseek_v3", "vocab_size": 96, "hidden_size": 32, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "intermediate_size": 48, "moe_intermediate_size": 16,
    "num_hidden_layers": 2, "n_shared_experts": 1, "n_routed_experts": 4, "kv_lora_rank": 16, "q_lora_rank": 24,
    "qk_rope_head_dim": 8, "v_head_dim": 12, "qk_nope_head_dim": 16, "n_group": 1, "topk_group": 1,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
VISION = {
    "patch_size": PATCH, "pos_emb_height": 6, "pos_emb_width": 6, "num_attention_heads": 2, "num_hidden_layers": 2,
    "hidden_size": 24, "intermediate_size": 40,
}  # fmt: skip


def network(seed: int = 0, dtype: torch.dtype = torch.float32) -> Kimi_K25ForConditionalGeneration:
    """A model in which no weight is left at zero or one."""
    config = Kimi_K25Config(
        text_config=dict(TEXT), vision_config=dict(VISION), projection_hidden_size=24, tie_word_embeddings=False,
        image_token_id=IMAGE, video_token_id=VIDEO, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(seed)
    model = Kimi_K25ForConditionalGeneration(config).float().eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name and name.endswith("weight"):
                tensor.copy_(1 + 0.2 * torch.randn_like(tensor))
            elif name.endswith("bias"):
                tensor.copy_(0.1 * torch.randn_like(tensor))
            elif "position_embeddings" in name and "time" not in name:
                tensor.copy_(0.5 * torch.randn_like(tensor))
            elif tensor.ndim >= 2 and "time_position" not in name:
                tensor.copy_(0.15 * torch.randn_like(tensor))
    return model.to(dtype)


def random_chunk(grid: tuple[int, int, int], rng: np.random.Generator) -> PatchChunk:
    """A chunk of noise."""
    patches = int(np.prod(grid))
    return PatchChunk(rng.uniform(-1, 1, (patches, 3 * PATCH * PATCH)).astype(np.float32), grid)


def torch_features(model: Kimi_K25ForConditionalGeneration, chunks: list[PatchChunk]) -> list[torch.Tensor]:
    """transformers' features of each chunk, which it is given alone: it cannot merge chunks of different lengths."""
    features = []
    for chunk in chunks:
        pixels = torch.tensor(chunk.pixels.reshape(-1, 3, PATCH, PATCH))
        tower = model.model.vision_tower(pixels, grid_thw=torch.tensor([chunk.grid]))
        features.append(model.model.mm_projector(tower.pooler_output).squeeze(1))
    return features
