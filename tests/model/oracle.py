"""The same random weights in a transformers model and in k2jax."""

import copy
import tempfile

import numpy as np
from safetensors.numpy import load_file
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from k2jax.config import ModelConfig
from k2jax.model import model_specs
from k2jax.params import from_matrices, hf_tensors, map_specs


def hf_model(config: ModelConfig, seed: int = 0) -> PreTrainedModel:
    """A float32 transformers model of ``config``; its weights, norms, biases and selection biases are all random."""
    torch.manual_seed(seed)
    model = _gqa_model(config) if config.attention == "gqa" else _deepseek_v3(config)
    model = model.float().eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name:
                tensor.copy_(1 + 0.2 * torch.randn_like(tensor))
            elif "correction_bias" in name:
                tensor.copy_(0.1 * torch.randn_like(tensor))
            elif name.endswith(".bias"):
                tensor.copy_(0.5 * torch.randn_like(tensor))
            elif tensor.ndim >= 2:
                tensor.copy_(0.05 * torch.randn_like(tensor))
    return model


def _deepseek_v3(config: ModelConfig) -> DeepseekV3ForCausalLM:
    return DeepseekV3ForCausalLM(
        DeepseekV3Config(
            **_common(config),
            num_key_value_heads=config.heads,
            moe_intermediate_size=config.moe.expert_ffn,
            n_shared_experts=config.moe.shared_experts,
            n_routed_experts=config.moe.experts,
            routed_scaling_factor=config.moe.routed_scaling,
            kv_lora_rank=config.mla.kv_lora_rank,
            q_lora_rank=config.mla.q_lora_rank,
            qk_rope_head_dim=config.mla.qk_rope_dim,
            v_head_dim=config.mla.v_dim,
            qk_nope_head_dim=config.mla.qk_nope_dim,
            n_group=config.moe.expert_groups,
            topk_group=config.moe.active_groups,
            num_experts_per_tok=config.moe.active_experts,
            first_k_dense_replace=config.dense_layers,
            norm_topk_prob=config.moe.normalize_gates,
        )
    )


def _gqa_model(config: ModelConfig) -> PreTrainedModel:
    options = {**_common(config), "num_key_value_heads": config.gqa.kv_heads, "head_dim": config.gqa.head_dim}
    if config.gqa.qk_norm:
        return Qwen3ForCausalLM(Qwen3Config(**options))
    if config.gqa.qkv_bias:
        return Qwen2ForCausalLM(Qwen2Config(**options))
    return LlamaForCausalLM(LlamaConfig(**options))


def _common(config: ModelConfig) -> dict:
    """Arguments of every model's transformers config."""
    rope = _rope(config)
    original = rope.get("original_max_position_embeddings", 4096)
    return {
        "vocab_size": config.vocab,
        "hidden_size": config.d_model,
        "intermediate_size": config.dense_ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_head,
        "max_position_embeddings": int(original * rope.get("factor", 1)),
        "rope_parameters": rope,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "eager",
    }


def _rope(config: ModelConfig) -> dict:
    yarn, llama3 = config.yarn, config.llama3_rope
    if yarn.factor > 1:
        scaling = {
            "rope_type": "yarn",
            "factor": yarn.factor,
            "beta_fast": yarn.beta_fast,
            "beta_slow": yarn.beta_slow,
            "mscale": yarn.mscale,
            "mscale_all_dim": yarn.mscale_all_dim,
            "original_max_position_embeddings": yarn.original_positions,
        }
    elif llama3.factor > 1:
        scaling = {
            "rope_type": "llama3",
            "factor": llama3.factor,
            "low_freq_factor": llama3.low_freq_factor,
            "high_freq_factor": llama3.high_freq_factor,
            "original_max_position_embeddings": llama3.original_positions,
        }
    else:
        scaling = {"rope_type": "default"}
    return {**scaling, "rope_theta": config.rope_theta}


def checkpoint_tensors(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """The tensors by their names in a checkpoint folder, as transformers writes it."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return {name: t for name, t in load_file(f"{folder}/model.safetensors").items() if t.size}  # no experts: empty


def gradient_tensors(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """The gradients by checkpoint names: a copy of the model that holds them as weights is saved."""
    holder = copy.deepcopy(model)
    with torch.no_grad():
        for (name, tensor), source in zip(holder.named_parameters(), model.parameters(), strict=True):
            assert source.grad is not None, name
            tensor.copy_(source.grad)
    return checkpoint_tensors(holder)


def to_params(tensors: dict[str, np.ndarray], config: ModelConfig) -> dict:
    """k2jax's tree of the same numbers, by the Hugging Face names of the weight table."""
    unused = set(tensors)

    def one(spec):
        stack = [spec.size_of((axis,)) for axis in spec.stack]
        inputs = [spec.size_of(spec.inputs)] if spec.inputs else []
        matrices = np.zeros([*stack, *inputs, spec.size_of(spec.outputs)], np.float32)
        for name, index in hf_tensors(spec):
            unused.discard(name)
            matrices[index] = tensors[name].T
        return np.asarray(from_matrices(spec, matrices))

    params = map_specs(one, model_specs(config))
    assert not unused, f"tensors that no spec names: {sorted(unused)}"
    return params
