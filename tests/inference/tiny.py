"""Tiny random models and the full forward pass as an oracle."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from k2jax.config import GQAConfig, Llama3RopeConfig, MLAConfig, ModelConfig, MoEConfig, YarnConfig
from k2jax.inference.engine import Engine
from k2jax.inference.weights import named_leaves
from k2jax.model import K2
from k2jax.model.vision import multimodal_specs
from k2jax.params import map_specs

MLA = ModelConfig(
    layers=3, dense_layers=1, d_model=32, heads=4, dense_ffn=48, vocab=61,
    mla=MLAConfig(q_lora_rank=24, kv_lora_rank=16, qk_nope_dim=8, qk_rope_dim=4, v_dim=12),
    moe=MoEConfig(expert_ffn=16, experts=8, active_experts=2, shared_experts=1),
    yarn=YarnConfig(factor=8.0, mscale=0.7, mscale_all_dim=1.3, original_positions=16),
)  # fmt: skip
PLAIN = ModelConfig(
    layers=2, dense_layers=1, d_model=32, heads=2, dense_ffn=48, vocab=61, tied_head=True,
    mla=MLAConfig(q_lora_rank=None, kv_lora_rank=16, qk_nope_dim=8, qk_rope_dim=4, v_dim=6),
    moe=MoEConfig(
        expert_ffn=16, experts=4, active_experts=2, shared_experts=0, expert_groups=2, active_groups=1
    ),
)  # fmt: skip
GQA = ModelConfig(
    layers=2, dense_layers=2, d_model=32, heads=6, attention="gqa", dense_ffn=48, vocab=61,
    gqa=GQAConfig(kv_heads=2, head_dim=8, qkv_bias=True),
    llama3_rope=Llama3RopeConfig(factor=4.0, original_positions=16),
)  # fmt: skip
NORMED = ModelConfig(
    layers=2, dense_layers=2, d_model=32, heads=4, attention="gqa", dense_ffn=48, vocab=61,
    gqa=GQAConfig(kv_heads=4, head_dim=8, qk_norm=True),
)  # fmt: skip
ROUTED = dataclasses.replace(GQA, dense_layers=0, moe=PLAIN.moe)
"""With experts; programs of grouped queries compile in a third of the time of latent attention's."""

SHORT = dataclasses.replace(MLA, layers=2)
"""A layer of each kind, which compile faster than three."""

MODELS = {"mla-yarn": SHORT, "mla-no-q-lora-groups": PLAIN, "gqa-bias-llama3": GQA, "gqa-qk-norm": NORMED}


@functools.cache
def weights(model, seed=0):
    """Random weights, every norm and bias moved from its start; large enough that logits differ.

    NumPy draws them: JAX would compile a program for every shape, as long as several of the engine's.
    """
    rng = np.random.default_rng(seed)

    def draw(spec):
        starts = {"zeros": np.zeros, "ones": np.ones, "normal": lambda shape: 0.3 * rng.standard_normal(shape)}
        return jnp.asarray((starts[spec.init](spec.shape) + 0.1 * rng.standard_normal(spec.shape)).astype(np.float32))

    return map_specs(draw, multimodal_specs(model))


SIZES = {"slots": 4, "max_length": 64}
"""Engines of equal sizes share their programs, whichever tests they belong to."""


def engine(model=GQA, seed=0, **sizes):
    """A small engine."""
    return Engine(model, weights(model, seed), **(SIZES | sizes))


def with_few_pages(run, pages):
    """The engine with this many pages left; its programs are those of other engines."""
    [pool] = run._scheduler._pools
    while pool.available > pages:
        pool.take()
    return run


def finish(run):
    """Steps an engine until it has no work."""
    while run.has_work():
        run.step()


def ids_of(requests):
    """Generated ids of each request."""
    return [list(request.tokens) for request in requests]


def check_against_oracle(model, request, seed=0):
    """Every log-probability that the request reports, prompt included, within 1e-4; greedy tokens are most likely."""
    temperature = request.sampling.temperature
    expected = oracle(model, request.ids, temperature, seed)
    at = len(request.prompt) - 1
    for i, token in enumerate(request.tokens):
        assert abs(request.logprobs[i] - expected[at + i, token]) <= 1e-4
        if temperature == 0.0:
            assert expected[at + i].max() - expected[at + i, token] <= 1e-4
    if request.prompt_logprobs:
        plain = oracle(model, request.ids, 1.0, seed)
        wanted = [plain[i, token] for i, token in enumerate(request.prompt[1:])]
        np.testing.assert_allclose(request.prompt_logprobs, wanted, atol=1e-4)


def check_alternatives(row, top, wanted):
    """The best of a row of the oracle's log-probabilities."""
    assert len(top) == wanted
    np.testing.assert_allclose([p for _, p in top], np.sort(row)[::-1][:wanted], atol=1e-4)
    np.testing.assert_allclose([row[token] for token, _ in top], [p for _, p in top], atol=1e-4)


@functools.cache
def _full(model):
    return jax.jit(lambda params, tokens: K2(model).apply({"params": params}, tokens).logits)


def oracle(model, ids, temperature=1.0, seed=0):
    """Log-probabilities ``[len(ids), V]`` float64 of the token after each, from one pass over all of them."""
    logits = _logits(model, tuple(ids), seed) / (temperature or 1.0)
    return (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - logits.max(-1, keepdims=True)
    )


@functools.lru_cache(2)  # several temperatures of the same tokens
def _logits(model, ids, seed):
    width = 1 << max(8, (len(ids) - 1).bit_length())  # few shapes; what follows a token does not change it
    padded = np.zeros((1, width), np.int32)
    padded[0, : len(ids)] = ids
    return np.asarray(_full(model)(weights(model, seed), jnp.asarray(padded)), np.float64)[0, : len(ids)]


def prompts(*lengths, seed=0, vocab=61):
    """Random prompts."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, length).tolist() for length in lengths]


def layer_by_layer(params):
    """The weights of a tree of stacked layers, as ``EngineWeights.leaves`` gives them."""
    for name, array in named_leaves(params):
        if name.startswith(("dense/", "moe/")):
            yield from (((name, row), array[row]) for row in range(len(array)))
        else:
            yield name, array
