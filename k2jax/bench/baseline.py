"""Baseline models of transformers in torch, on all cores: DeepseekV3ForCausalLM, and the tower of Kimi-K2.5."""

from __future__ import annotations

import os
from typing import Any

from k2jax.config import ModelConfig
from k2jax.errors import UserError


def torch_model(model: ModelConfig, experts: str) -> tuple[Any, Any]:
    """Returns the torch module, and a float32 network of the same architecture with random weights.

    Args:
        model: an architecture with MLA and without YaRN.
        experts: name of an experts implementation of transformers.

    Raises:
        UserError: if the extra ``[parity]`` is not installed.
    """
    torch = _torch()
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    network = DeepseekV3ForCausalLM(
        DeepseekV3Config(
            vocab_size=model.vocab,
            hidden_size=model.d_model,
            intermediate_size=model.dense_ffn,
            moe_intermediate_size=model.moe.expert_ffn,
            num_hidden_layers=model.layers,
            num_attention_heads=model.heads,
            num_key_value_heads=model.heads,
            n_shared_experts=model.moe.shared_experts,
            n_routed_experts=model.moe.experts,
            routed_scaling_factor=model.moe.routed_scaling,
            kv_lora_rank=model.mla.kv_lora_rank,
            q_lora_rank=model.mla.q_lora_rank,
            qk_rope_head_dim=model.mla.qk_rope_dim,
            v_head_dim=model.mla.v_dim,
            qk_nope_head_dim=model.mla.qk_nope_dim,
            n_group=model.moe.expert_groups,
            topk_group=model.moe.active_groups,
            num_experts_per_tok=model.moe.active_experts,
            first_k_dense_replace=model.dense_layers,
            attn_implementation="sdpa",
            experts_implementation=experts,
            pad_token_id=None,
        )
    ).float()
    return torch, network


def torch_tower(model: ModelConfig, attention: str) -> tuple[Any, Any, Any]:
    """Returns the torch module, and a float32 tower and projector of the same architecture with random weights.

    Args:
        model: an architecture with vision.
        attention: name of an attention implementation of transformers.

    Raises:
        UserError: if the extra ``[parity]`` is not installed.
    """
    torch = _torch()
    from transformers import Kimi_K25Config
    from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25MultimodalProjection, Kimi_K25VisionModel

    vision = model.vision
    config = Kimi_K25Config(
        text_config={"model_type": "deepseek_v3", "hidden_size": model.d_model},
        vision_config={
            "patch_size": vision.patch,
            "pos_emb_height": vision.grid,
            "pos_emb_width": vision.grid,
            "num_attention_heads": vision.heads,
            "num_hidden_layers": vision.layers,
            "hidden_size": vision.width,
            "intermediate_size": vision.ffn,
        },
        projection_hidden_size=vision.width,
        attn_implementation=attention,
    )
    tower = Kimi_K25VisionModel._from_config(config.vision_config, attn_implementation=attention)
    return torch, tower.float(), Kimi_K25MultimodalProjection(config).float()


def _torch() -> Any:
    """The torch module, on all cores and with the seed 0; transformers is there too."""
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise UserError('the baseline needs torch and transformers: pip install -e ".[parity]"') from error
    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)
    return torch
