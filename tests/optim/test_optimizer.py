"""The whole optimizer: float64 NumPy for Muon and QK-Clip, torch for AdamW, and the contract of ``build_optimizer``."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from k2jax import optim
from k2jax.config.schema import OptimizerConfig, RouterConfig, ScheduleConfig
from k2jax.errors import UserError
from k2jax.params import abstract, named_specs
from tests.optim import muonclip_reference as ref
from tests.optim.muonclip_reference import model_specs, random_like
from tests.optim.test_muon import matrices_of

SPECS = model_specs()
RATE = 0.02
CONSTANT = ScheduleConfig(kind="constant", warmup_steps=0)
CONFIG = OptimizerConfig(learning_rate=RATE, schedule=CONSTANT, grad_clip=0.0, qk_clip_tau=5.0)
ROUTER = RouterConfig(bias_rate=1e-3, bias_rate_final=5e-4)
TOKENS = np.array([[4, 1, 1], [2, 2, 2]], np.int32)
LOGITS = np.array([[9.0, 1.0], [-np.inf, 4.0], [5.0, 40.0]], np.float32)


def gradients(seed):
    grads = random_like(SPECS, seed)
    grads["moe"]["router_bias"] = np.zeros_like(grads["moe"]["router_bias"])
    return grads


@functools.cache
def compiled(config, total):
    """(init, jitted update): several tests share a compilation."""
    optimizer = optim.build_optimizer(config, ROUTER, SPECS, total)
    return optimizer.init, jax.jit(optimizer.update)


def run(config, steps=2, logits=LOGITS, scale=1.0, total=2):
    """Weights by name after some steps."""
    init, step = compiled(config, total)
    params = random_like(SPECS, 0)
    state = init(params)
    for i in range(steps):
        grads = jax.tree.map(lambda g: np.float32(scale) * g, gradients(10 + i))
        seen = {"max_logit": {"text": jnp.asarray(logits)}, "expert_tokens": jnp.asarray(TOKENS)}
        updates, state = step(grads, state, params, **seen)
        params = optax.apply_updates(params, updates)
    return jax.tree.map(np.asarray, flat(params))


def flat(tree):
    return {name: leaf for (name, _), leaf in zip(named_specs(SPECS), jax.tree.leaves(tree), strict=True)}


def torch_adamw(weight, grads, decay):
    parameter = torch.nn.Parameter(torch.tensor(weight, dtype=torch.float64))
    oracle = torch.optim.AdamW([parameter], lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=decay)
    for grad in grads:
        parameter.grad = torch.tensor(grad, dtype=torch.float64)
        oracle.step()
    return parameter.detach().numpy()


@pytest.mark.parametrize("name", ["muonclip", "adamw"])
def test_two_steps_of_a_whole_model_agree_with_the_oracles(name):
    """AdamW leaves against torch (decay on matrices only), Muon's against float64 with QK-Clip after each step."""
    got = run(dataclasses.replace(CONFIG, name=name))
    start = flat(random_like(SPECS, 0))
    grads = [flat(gradients(10 + i)) for i in range(2)]
    rows = {row.name: row for row in optim.group_table(SPECS, dataclasses.replace(CONFIG, name=name))}
    for leaf, spec in named_specs(SPECS):
        if rows[leaf].group == "balance":
            expected = start[leaf] + (1e-3 + 5e-4) * np.array([[-1, 1, 1], [0, 0, 0]])
        elif rows[leaf].group == "adamw":
            expected = torch_adamw(start[leaf], [g[leaf] for g in grads], 0.1 if rows[leaf].decays else 0.0)
        elif not spec.segments:
            oracles = [ref.Muon(w, RATE) for w in matrices_of(spec, start[leaf])]
            for g in grads:
                for oracle, matrix in zip(oracles, matrices_of(spec, g[leaf]), strict=True):
                    oracle.step(matrix)
            np.testing.assert_allclose(
                matrices_of(spec, got[leaf]), [o.weight for o in oracles], atol=1e-5, rtol=0, err_msg=leaf
            )
            continue
        else:
            continue  # below: both projections of a layer together
        np.testing.assert_allclose(got[leaf], expected, atol=1e-5, rtol=0, err_msg=leaf)
    if name == "muonclip":
        for group, logits in (("dense", LOGITS[:1]), ("moe", LOGITS[1:])):
            check_attention(group, logits, start, grads, got)


def check_attention(group, logits, start, grads, got):
    """Muon and then the clip, twice, on one group's q_b and kv_b."""
    names = [f"{group}/attention/{name}" for name in ("q_b", "kv_b")]
    shapes = [start[name].shape for name in names]
    oracles = [[ref.Muon(w.reshape(w.shape[0], -1), RATE) for w in start[name]] for name in names]
    for g in grads:
        for name, layers in zip(names, oracles, strict=True):
            for layer, oracle in enumerate(layers):
                oracle.step(g[name][layer].reshape(oracle.weight.shape))
        weights = [np.stack([o.weight for o in layers]).reshape(s) for layers, s in zip(oracles, shapes, strict=True)]
        clipped = ref.qk_clip(dict(zip(("q_b", "kv_b"), weights, strict=True)), logits, 5.0)
        for new, layers in zip(clipped.values(), oracles, strict=True):
            for layer, oracle in enumerate(layers):
                oracle.weight = new[layer].reshape(oracle.weight.shape)
    for name, new in zip(names, clipped.values(), strict=True):
        np.testing.assert_allclose(got[name], new, atol=1e-5, rtol=0, err_msg=name)


def test_gradient_clipping_is_global_and_zero_turns_it_off():
    """A large eps makes AdamW's update depend on the scale of the gradient."""
    config = dataclasses.replace(CONFIG, name="adamw", adam_eps=1.0)
    norm = float(optax.global_norm(gradients(10)))
    same = run(dataclasses.replace(config, grad_clip=2.0), 1)
    scaled = run(config, 1, scale=2.0 / norm)
    off = run(config, 1)
    for leaf in ("embed", "moe/experts/w2", "final_norm"):
        np.testing.assert_allclose(same[leaf], scaled[leaf], atol=1e-6)
        assert np.abs(off[leaf] - same[leaf]).max() > 1e-3


def test_plain_muon_does_not_clip():
    clip = run(CONFIG, 1)
    plain = run(dataclasses.replace(CONFIG, name="muon"), 1)
    calm = run(CONFIG, 1, np.zeros_like(LOGITS))
    assert (clip["moe/attention/q_b"] != plain["moe/attention/q_b"]).any()
    for leaf, weight in plain.items():
        np.testing.assert_allclose(weight, calm[leaf], rtol=1e-6)  # two programs may round differently


def test_missing_statistics_are_errors():
    optimizer = optim.build_optimizer(CONFIG, ROUTER, SPECS, 2)
    params = random_like(SPECS, 0)
    state = optimizer.init(params)
    statistics = {"max_logit": {"text": jnp.asarray(LOGITS)}, "expert_tokens": jnp.asarray(TOKENS)}
    for missing in statistics:
        given = {name: value for name, value in statistics.items() if name != missing}
        with pytest.raises(ValueError, match=missing):
            jax.eval_shape(optimizer.update, params, state, params, **given)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_finite_check_catches_a_non_finite_logit(bad):
    init, step = compiled(CONFIG, 2)
    params, logits = random_like(SPECS, 0), LOGITS.copy()
    logits[0, 1] = bad
    seen = {"max_logit": {"text": jnp.asarray(logits)}, "expert_tokens": jnp.asarray(TOKENS)}
    updates, _ = step(gradients(1), init(params), params, **seen)
    assert not np.isfinite(optax.global_norm(updates))


def test_init_is_abstract_and_the_state_is_float32():
    optimizer = optim.build_optimizer(CONFIG, ROUTER, SPECS, 2)
    state = jax.eval_shape(optimizer.init, abstract(SPECS))
    sizes = {leaf.dtype for leaf in jax.tree.leaves(state) if leaf.ndim}
    assert sizes == {jnp.dtype("float32")}
    moments = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim)
    groups = {row.name: row.group for row in optim.group_table(SPECS, CONFIG)}
    weight_of = {"muon": 1, "adamw": 2, "balance": 0}
    assert moments == sum(spec.size * weight_of[groups[name]] for name, spec in named_specs(SPECS))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"name": "sgd"}, "name"),
        ({"newton_schulz": "quintic"}, "newton_schulz"),
        ({"newton_schulz": "polar_express", "newton_schulz_steps": 9}, "polar_express"),
        ({"qk_clip_tau": 0.0}, "tau"),
        ({"qk_clip_alpha": 1.5}, "alpha"),
        ({"grad_clip": -1.0}, "grad_clip"),
        ({"schedule": ScheduleConfig(warmup_steps=500)}, "does not fit"),
    ],
)
def test_wrong_values_are_the_users_mistake(changes, word):
    with pytest.raises(UserError, match=word):
        optim.build_optimizer(dataclasses.replace(CONFIG, **changes), ROUTER, model_specs(), 100)


def test_learning_rate_reaches_both_rules():
    config = dataclasses.replace(CONFIG, schedule=ScheduleConfig(kind="constant", warmup_steps=4))
    assert float(optim.learning_rate(config, 10)(2)) == pytest.approx(RATE / 2)
    start, got = flat(random_like(SPECS, 0)), run(config, 1, np.zeros_like(LOGITS), total=10)
    still = [leaf for leaf in start if (got[leaf] == start[leaf]).all()]
    assert set(start) - set(still) == {"moe/router_bias"}  # the first warm-up step has rate 0
