"""Routing replay: given experts are taken, their gates and gradients come from the scores of the router."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.batch import NO_EXPERTS
from k2jax.model import forward, head_weight, model_specs, run_layers, token_logprobs
from k2jax.model.attention import make_attend
from k2jax.model.router import route
from k2jax.params import initialize
from tests.parallel.tiny import config_of

CONFIG = config_of({"model.layers": 3}).model
MOE = CONFIG.moe
ROWS, LENGTH = 2, 16


@pytest.fixture(scope="module")
def model():
    """Weights, tokens, and the experts that the router chooses ``[B, S, L, K]``."""
    params = initialize(model_specs(CONFIG), jax.random.key(0), 0.3)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, CONFIG.vocab, (ROWS, LENGTH)))
    real = jnp.ones(tokens.shape, bool)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)
    attend = make_attend(CONFIG, positions, None)
    _, stats = run_layers(params, params["embed"][tokens], real, config=CONFIG, attend=attend, return_experts=True)
    return params, tokens, np.moveaxis(np.asarray(stats.expert_ids, np.int16), 0, 2)


@pytest.fixture(scope="module")
def plain(model):
    """Loss and gradient where the router chooses."""
    return loss_and_gradient(*model[:2], None)


def loss_and_gradient(params, tokens, replayed):
    parent = jnp.broadcast_to(jnp.arange(LENGTH) - 1, tokens.shape)

    def loss(params):
        hidden_BSD, _ = forward(params, tokens, None, None, CONFIG, replayed=replayed)
        return token_logprobs(hidden_BSD, parent, tokens, head_weight(params)).sum()

    return jax.jit(jax.value_and_grad(loss))(params)


def others(experts):
    """Experts that were not chosen in the place of every chosen one, distinct for each token."""
    shift = np.random.default_rng(1).integers(1, MOE.experts, experts.shape[:-1])[..., None]
    return ((experts + shift) % MOE.experts).astype(np.int16)


def test_the_router_takes_given_experts_and_weighs_them_by_its_own_scores():
    rng = np.random.default_rng(2)
    weight, x = rng.normal(size=(32, MOE.experts)), rng.normal(size=(ROWS, LENGTH, 32))
    given = np.stack([rng.permutation(MOE.experts)[: MOE.active_experts] for _ in range(ROWS * LENGTH)])
    given = given.reshape(ROWS, LENGTH, -1)
    given[0, :5] = NO_EXPERTS
    real = np.arange(LENGTH) < LENGTH - 2
    real = np.broadcast_to(real, (ROWS, LENGTH))
    target = rng.normal(size=given.shape)

    def gates(x, ids):  # DeepSeek-V3, equations 12 to 15, in float64
        scores = 1 / (1 + np.exp(-np.einsum("bsd,de->bse", x, weight)))
        chosen = np.take_along_axis(scores, ids, -1)
        return np.where(real[..., None], MOE.routed_scaling * chosen / chosen.sum(-1, keepdims=True), 0)

    own = np.argsort(-np.einsum("bsd,de->bse", x, weight), -1)[..., : MOE.active_experts]
    ids = np.where(given >= 0, given, own)
    routed = lambda x: route(jnp.float32(weight), jnp.zeros(MOE.experts), x, real, CONFIG, given)  # noqa: E731
    routing = routed(jnp.float32(x))
    np.testing.assert_array_equal(routing.expert_ids, np.where(real[..., None], ids, MOE.experts))
    np.testing.assert_array_equal(routing.counts, np.bincount(ids[real].ravel(), minlength=MOE.experts))
    np.testing.assert_allclose(routing.gates, gates(x, ids), rtol=1e-5)
    gradient = jax.grad(lambda x: (routed(x).gates * target).sum())(jnp.float32(x))
    for index in [(0, 2, 3), (0, 9, 0), (1, 4, 31)]:
        step = np.zeros_like(x)
        step[index] = 1e-6
        expected = ((gates(x + step, ids) - gates(x - step, ids)) * target).sum() / 2e-6
        np.testing.assert_allclose(gradient[index], expected, rtol=1e-3, atol=1e-6)


def test_replaying_the_router_s_own_choice_changes_neither_loss_nor_gradient(model, plain):
    params, tokens, experts = model
    for given in (experts, np.full_like(experts, NO_EXPERTS)):
        other = loss_and_gradient(params, tokens, given)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), other, plain)
    assert abs(float(loss_and_gradient(params, tokens, others(experts))[0] - plain[0])) > 1e-2


def test_replay_undoes_a_flip_of_the_choice(model, plain):
    """A selection bias that sends every token elsewhere stands for an engine that rounds otherwise."""
    params, tokens, experts = model
    flipped = dict(params, moe=dict(params["moe"]))
    flipped["moe"]["router_bias"] = params["moe"]["router_bias"] + jnp.linspace(-2, 2, MOE.experts)
    assert abs(float(loss_and_gradient(flipped, tokens, None)[0] - plain[0])) > 1e-2
    found = loss_and_gradient(flipped, tokens, experts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, plain)
