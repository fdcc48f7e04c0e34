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
LLAMA3_ROPE = Llama3RopeConfig(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=32)
YARN = YarnConfig(factor=8.0, mscale=0.7, mscale_all_dim=1.3)
# Every value of every feature occurs; features of one variant do not depend on each other.
VARIANTS = {
    "q_lora, yarn without mscale_all_dim": (TINY, {"yarn": replace_keys(YARN, {"mscale_all_dim": 0.0})}),
    "no q_lora, two shared experts, eps 1e-5, yarn with K2's betas": (TINY, {
        "mla.q_lora_rank": None, "moe.shared_experts": 2, "norm_eps": 1e-5, "rope_theta": 50000.0,
        "yarn": YarnConfig(factor=32.0, beta_fast=1.0, beta_slow=1.0),
    }),
    "no shared experts, group-limited, yarn with an attention factor": (TINY, {
        "moe.shared_experts": 0, "moe.expert_groups": 4, "moe.active_groups": 2, "yarn": YARN,
    }),
    "gates not normalised, three dense layers, tied head": (TINY, {
        "moe.normalize_gates": False, "layers": 5, "dense_layers": 3, "tied_head": True,
    }),
    "llama, kv_heads == heads, llama3 rope with other bounds": (TINY_GQA, {
        "gqa.kv_heads": 4, "llama3_rope": replace_keys(LLAMA3_ROPE, {"low_freq_factor": 0.5, "high_freq_factor": 2.0}),
    }),
    "llama, one kv head, eps 1e-5, llama3 rope": (TINY_GQA, {
        "gqa.kv_heads": 1, "norm_eps": 1e-5, "llama3_rope": LLAMA3_ROPE,
    }),
    "qwen2, three heads a key, tied head": (TINY_GQA, {
        "gqa.qkv_bias": True, "heads": 6, "gqa.head_dim": 8, "tied_head": True,
    }),
    "llama, yarn with an attention factor": (TINY_GQA, {
        "yarn": YarnConfig(factor=8.0, mscale_all_dim=0.0, original_positions=16),
    }),
    "qwen3, heads wider than the stream": (TINY_GQA, {"gqa.qk_norm": True, "gqa.head_dim": 20, "norm_eps": 1e-3}),
}  # fmt: skip


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda name: name.replace(" ", "-"))
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
