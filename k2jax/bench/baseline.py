"""Baseline model: transformers' DeepseekV3ForCausalLM in torch, on all cores."""

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
    try:
        import torch
        from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
    except ImportError as error:
        raise UserError('the baseline needs torch and transformers: pip install -e ".[parity]"') from error
    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)
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
