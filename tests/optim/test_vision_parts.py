"""The optimizer of a model with a tower: QK-Clip by its own maxima, parts that do not learn, rates of their own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.config import defaults, resolve
from k2jax.model.vision import multimodal_specs
from k2jax.optim import build_optimizer, group_table
from k2jax.optim.groups import parts_of, without_frozen
from k2jax.optim.qk_clip import clip_groups
from k2jax.params import map_specs

SIZES = {
    "model.layers": 2,
    "model.d_model": 16,
    "model.heads": 2,
    "model.dense_ffn": 16,
    "model.moe.experts": 4,
    "model.moe.expert_ffn": 8,
    "model.vocab": 8,
    "model.vision.layers": 2,
    "model.vision.width": 16,
    "model.vision.heads": 2,
    "model.vision.ffn": 8,
    "model.vision.patch": 2,
    "model.vision.grid": 2,
    "optimizer.schedule.kind": "constant",
    "optimizer.schedule.warmup_steps": 0,
    "optimizer.qk_clip_tau": 2.0,
    "optimizer.newton_schulz_steps": 2,
}


def small_config():
    config = defaults("pretrain", model="micro")
    config.update_from_flattened_dict(SIZES)
    return resolve(config)


@pytest.fixture(scope="module")
def setting():
    config = small_config()
    specs = multimodal_specs(config.model)
    rng = np.random.default_rng(0)
    return config, specs, map_specs(lambda spec: rng.normal(size=spec.shape).astype(np.float32), specs)


def seen(config, text=1.0, tower=1.0):
    layers = config.model.layers
    return {
        "max_logit": {
            "text": jnp.full((layers, config.model.heads), text),
            "vision": jnp.array([[tower, 1.0], [1.0, tower]]),
        },
        "expert_tokens": jnp.ones((layers - 1, 4), jnp.int32),
    }


def first_updates(optimizer, params, maxima):
    """Of gradients that are 1 everywhere."""
    grads = jax.tree.map(np.ones_like, params)
    return jax.jit(lambda params: optimizer.update(grads, optimizer.init(params), params, **maxima)[0])(params)


def test_the_tower_is_clipped_head_by_head_with_its_biases_and_the_decoder_by_its_own_maxima(setting):
    config, specs, params = setting
    config = dataclasses.replace(config.optimizer, qk_clip_alpha=0.25)
    transformation = clip_groups(specs, config)
    zeros = jax.tree.map(np.zeros_like, params)
    clip = jax.jit(lambda maxima: transformation.update(zeros, transformation.init(params), params, **maxima)[0])
    updates = clip(seen(setting[0], tower=8.0))
    gamma = np.array([[2 / 8, 1.0], [1.0, 2 / 8]], np.float64)  # [layers, heads]
    expected = {"q": gamma**0.25, "k": gamma**0.75, "v": np.ones((2, 2))}
    for name, factor in expected.items():
        old, more = (tree["vision"]["layers"]["attention"] for tree in (params, updates))
        weight, bias = (np.asarray(old[key] + more[key]) for key in (name, name + "_bias"))
        np.testing.assert_allclose(weight, np.float64(old[name]) * factor[:, None, :, None], rtol=1e-5)
        np.testing.assert_allclose(bias, np.float64(old[name + "_bias"]) * factor[..., None], rtol=1e-5)
    text = {name: part for name, part in updates.items() if name != "vision"}
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(text))
    updates = clip(seen(setting[0], text=8.0))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(updates["vision"]))
    assert np.any(updates["dense"]["attention"]["q_b"])


@pytest.mark.parametrize("frozen", [("tower",), ("text", "projector")])
def test_what_is_frozen_has_no_state_and_no_update_and_the_rest_learns(setting, frozen):
    config, specs, params = setting
    optimizer = build_optimizer(dataclasses.replace(config.optimizer, frozen=frozen), config.router, specs, 10)
    state = jax.eval_shape(optimizer.init, params)
    rows = group_table(specs, dataclasses.replace(config.optimizer, frozen=frozen))
    learning = sum(int(np.prod(row.shape)) for row in rows if row.group.startswith("muon"))
    both = sum(int(np.prod(row.shape)) for row in rows if row.group.startswith("adamw"))
    held = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim)
    assert held == learning + 2 * both
    updates = first_updates(optimizer, params, seen(config, text=9.0, tower=9.0))
    grads = without_frozen(specs, dataclasses.replace(config.optimizer, frozen=frozen), params)
    for tree in (updates, grads):
        parts = {
            "text": {name: part for name, part in tree.items() if name != "vision"},
            "projector": tree["vision"]["projector"],
            "tower": {name: part for name, part in tree["vision"].items() if name != "projector"},
        }
        for name, part in parts.items():
            assert any(np.any(leaf) for leaf in jax.tree.leaves(part)) != (name in frozen), name


def test_parts_have_learning_rates_of_their_own(setting):
    config, specs, params = setting

    def step(**rates):
        changed = dataclasses.replace(config.optimizer, weight_decay=0.0, **rates)
        optimizer = build_optimizer(changed, config.router, specs, 10)
        return first_updates(optimizer, params, seen(config))

    plain, scaled = step(), step(tower_rate=0.5, projector_rate=3.0)
    for pick, factor in (
        (lambda updates: updates["vision"]["layers"]["ffn"]["up"], 0.5),
        (lambda updates: updates["vision"]["projector"]["down_bias"], 3.0),
        (lambda updates: updates["embed"], 1.0),
    ):
        assert np.any(pick(plain))
        np.testing.assert_allclose(pick(scaled), factor * np.asarray(pick(plain)), rtol=1e-4)


def test_a_part_without_a_gradient_keeps_its_weights_and_its_state_and_the_others_do_what_they_did(setting):
    """Also where its heads are above the threshold of QK-Clip."""
    config, specs, params = setting
    without_norm = dataclasses.replace(config.optimizer, grad_clip=0.0)  # else parts share the norm of all gradients
    optimizer = build_optimizer(without_norm, config.router, specs, 10)
    maxima, ones = seen(config, text=9.0, tower=9.0), jax.tree.map(np.ones_like, params)
    shapes = jax.eval_shape(optimizer.init, params)
    step = jax.jit(lambda grads, state, params: optimizer.update(grads, state, params, **maxima))
    _, state = step(ones, jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes), params)
    every, moved = step(ones, state, params)
    parts, roles = parts_of(specs), map_specs(lambda spec: spec.role, specs)
    for silent in (("tower", "projector"), ("projector",)):
        gone = jax.tree.map(lambda part, grad, silent=silent: grad * (part not in silent), parts, ones)
        updates, after = step(gone, state, params)
        for part, role, update, full in zip(*map(jax.tree.leaves, (parts, roles, updates, every)), strict=True):
            np.testing.assert_array_equal(update, 0 * full if part in silent else full)
            assert np.any(full) or role == "router_bias"
        for label, old in state[1].inner_states.items():
            expected = old if (label.partition("/")[2] or "text") in silent else moved[1].inner_states[label]
            for value, right in zip(*map(jax.tree.leaves, (after[1].inner_states[label], expected)), strict=True):
                assert value.ndim == 0 or np.array_equal(value, right), label  # schedules count on
