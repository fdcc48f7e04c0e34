"""Logits, loss and every gradient equal those of the transformers model with the same random weights."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from k2jax.config import GQAConfig, Llama3RopeConfig, MLAConfig, ModelConfig, MoEConfig, YarnConfig, replace_keys
from k2jax.model import K2, head_weight, model_specs, token_logprobs
from k2jax.params import hf_tensors, named_specs, to_matrices
from tests.model.oracle import checkpoint_tensors, gradient_tensors, hf_model, to_params

TINY = ModelConfig(
    layers=3, dense_layers=1, d_model=48, heads=4, dense_ffn=64, vocab=97,
    mla=MLAConfig(q_lora_rank=24, kv_lora_rank=16, qk_nope_dim=16, qk_rope_dim=8, v_dim=12),
    moe=MoEConfig(expert_ffn=32, experts=8, active_experts=2, shared_experts=1),
)  # fmt: skip
TINY_GQA = ModelConfig(
    layers=3, dense_layers=3, d_model=48, heads=4, attention="gqa", dense_ffn=64, vocab=97, rope_theta=1e4,
    gqa=GQAConfig(kv_heads=2, head_dim=12),
)  # fmt: skip
MLA_VARIANTS = {
    "q_lora": {},
    "no q_lora, two shared experts, eps 1e-5": {"mla.q_lora_rank": None, "moe.shared_experts": 2, "norm_eps": 1e-5},
    "no shared experts": {"moe.shared_experts": 0},
    "yarn": {"yarn": YarnConfig(factor=4.0, beta_fast=32.0, beta_slow=1.0, original_positions=16)},
    "yarn with K2's betas": {"yarn": YarnConfig(factor=32.0, beta_fast=1.0, beta_slow=1.0), "rope_theta": 50000.0},
    "yarn with an attention factor": {"yarn": YarnConfig(factor=8.0, mscale=0.7, mscale_all_dim=1.3)},
    "yarn without mscale_all_dim": {"yarn": YarnConfig(factor=8.0, mscale_all_dim=0.0)},
    "group-limited": {"moe.expert_groups": 4, "moe.active_groups": 2},
    "gates not normalised": {"moe.normalize_gates": False},
    "three dense layers": {"layers": 5, "dense_layers": 3},
    "tied head": {"tied_head": True},
}
LLAMA3_ROPE = Llama3RopeConfig(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=32)
GQA_VARIANTS = {
    "llama": {},
    "llama, llama3 rope": {"llama3_rope": LLAMA3_ROPE},
    "llama, other bounds": {
        "llama3_rope": replace_keys(LLAMA3_ROPE, {"low_freq_factor": 0.5, "high_freq_factor": 2.0})
    },
    "llama, yarn": {"yarn": YarnConfig(factor=4.0, original_positions=32)},
    "llama, yarn with an attention factor": {"yarn": YarnConfig(factor=8.0, mscale_all_dim=0.0, original_positions=16)},
    "llama, tied head, eps 1e-5": {"tied_head": True, "norm_eps": 1e-5},
    "llama, kv_heads == heads": {"gqa.kv_heads": 4},
    "llama, one kv head": {"gqa.kv_heads": 1},
    "qwen2": {"gqa.qkv_bias": True},
    "qwen2, three heads a key, tied head": {"gqa.qkv_bias": True, "heads": 6, "gqa.head_dim": 8, "tied_head": True},
    "qwen3, heads wider than the stream": {"gqa.qk_norm": True, "gqa.head_dim": 20, "norm_eps": 1e-3},
}
VARIANTS = {
    **{name: (TINY, fields) for name, fields in MLA_VARIANTS.items()},
    **{name: (TINY_GQA, fields) for name, fields in GQA_VARIANTS.items()},
}


COVERED = {  # by a variant with more of it, or of the other attention
    "yarn", "three dense layers", "tied head", "llama", "llama, other bounds", "llama, yarn",
    "llama, kv_heads == heads", "qwen2",
}  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.slow] if name in COVERED else []) for name in VARIANTS],
    ids=lambda name: name.replace(" ", "-"),
)
def pair(request):
    """(config, what transformers computes, what k2jax computes with the same weights)."""
    base, fields = VARIANTS[request.param]
    config = replace_keys(base, fields)
    model = hf_model(config)
    tokens = np.random.default_rng(0).integers(0, config.vocab, (2, 40))
    output = model(torch.tensor(tokens), labels=torch.tensor(tokens))
    output.loss.backward()
    expected = Result(output.logits.detach().numpy(), output.loss.item(), gradient_tensors(model))
    return config, expected, compute(config, to_params(checkpoint_tensors(model), config), jnp.asarray(tokens))


class Result(NamedTuple):
    """Logits, loss and gradients, the latter by names of transformers or as a tree of k2jax."""

    logits: np.ndarray
    loss: float
    gradients: dict


def compute(config, params, tokens):
    """One compiled program gives k2jax's logits, loss and gradients."""

    def loss(params):
        output = K2(config).apply({"params": params}, tokens)
        parent = jnp.broadcast_to(jnp.arange(tokens.shape[1]) - 1, tokens.shape)
        logprobs = token_logprobs(output.hidden, parent, tokens, head_weight(params))
        return -logprobs.sum() / (tokens.shape[0] * (tokens.shape[1] - 1)), output.logits

    (value, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return Result(np.asarray(logits), float(value), gradients)


def test_logits_agree(pair):
    _, expected, ours = pair
    assert np.abs(ours.logits - expected.logits).max() <= 2e-4
    assert np.abs(expected.logits).max() > 0.1  # the comparison is about something


def test_every_gradient_agrees(pair):
    config, (_, expected_loss, expected), (_, value, grads) = pair
    assert abs(value - expected_loss) <= 1e-5
    specs = model_specs(config)
    compared = 0
    for (_, spec), grad in zip(named_specs(specs), jax.tree.leaves(grads), strict=True):
        if spec.role == "router_bias":
            assert not np.asarray(grad).any()
            continue
        matrices = np.asarray(to_matrices(spec, grad))
        for name, index in hf_tensors(spec):
            oracle = expected[name].T
            error = np.linalg.norm(matrices[index] - oracle)
            assert error <= 1e-4 * np.linalg.norm(oracle) + 1e-9, name
            compared += 1
    assert compared == sum(1 for name in expected if "correction_bias" not in name)
