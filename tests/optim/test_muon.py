"""The Muon update against float64 NumPy, optax and torch, and regressions that public code has had."""

import dataclasses

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from k2jax.optim.muon import scale_by_muon
from k2jax.params import ParamSpec, is_spec
from pallas_kernels.newton_schulz import coefficients
from tests.optim.muonclip_reference import Muon, model_specs, newton_schulz, random_like

MUON = coefficients("muon", 5)
RATE = 0.02


def matrix_spec(*shape):
    """``[..., n, m]`` with numbered stack axes."""
    axes = (*(f"stack{i}" for i in range(len(shape) - 2)), "in", "out")
    return ParamSpec(shape, axes, "matrix", ("out",), hf="w", inputs=("in",))


def optimizer(specs, **options):
    return optax.chain(
        scale_by_muon(specs, coefficients=MUON, **options),
        optax.add_decayed_weights(0.1),
        optax.scale_by_learning_rate(RATE),
    )


def run(transformation, params, gradients):
    state = transformation.init(params)
    step = jax.jit(transformation.update)
    for grads in gradients:
        updates, state = step(grads, state, params)
        params = optax.apply_updates(params, updates)
    return jax.tree.map(np.asarray, params)


def matrices_of(spec, leaf):
    """Every matrix of a leaf, as (index, [inputs, outputs]), by plain indexing."""
    leaf = np.asarray(leaf)
    if spec.axes[-3:] == ("embed", "gate_up", "ffn"):
        leaf = np.moveaxis(leaf, -2, -3)
    stack = len(spec.shape) - len(spec.inputs) - len(spec.outputs)
    rows = int(np.prod([spec.shape[spec.axes.index(axis)] for axis in spec.inputs]))
    return leaf.reshape(-1, rows, leaf[(0,) * stack].size // rows)


@pytest.mark.parametrize("shape", [(24, 24), (16, 40), (40, 16), (3, 2, 12, 20)])
def test_whole_step_agrees_with_float64(shape):
    """Square, wide, tall and stacked; three steps with decay and rate."""
    specs = {"w": matrix_spec(*shape)}
    weight, *gradients = (random_like(specs, seed) for seed in range(4))
    got = run(optimizer(specs), weight, gradients)["w"]
    for i, start in enumerate(weight["w"].reshape(-1, *shape[-2:])):
        oracle = Muon(start, RATE)
        for grads in gradients:
            oracle.step(grads["w"].reshape(-1, *shape[-2:])[i])
        np.testing.assert_allclose(got.reshape(-1, *shape[-2:])[i], oracle.weight, atol=1e-5, rtol=0)


def test_agrees_with_optax():
    """optax.contrib.muon without Nesterov's form, on a whole layer's leaves described by dimension numbers."""
    specs = {k: v for k, v in model_specs()["moe"]["attention"].items() if v.role == "matrix"}
    specs |= model_specs()["moe"]["experts"]

    def numbers(spec):
        return optax.contrib.MuonDimensionNumbers(
            tuple(spec.axes.index(a) for a in spec.inputs), tuple(spec.axes.index(a) for a in spec.outputs)
        )

    dims = jax.tree.map(numbers, specs, is_leaf=is_spec)
    theirs = optax.contrib.muon(
        RATE, weight_decay=0.1, consistent_rms=0.2, nesterov=False, muon_weight_dimension_numbers=dims
    )
    weight, *gradients = (random_like(specs, seed) for seed in range(4))
    ours = run(optimizer(specs), weight, gradients)
    for name, expected in run(theirs, weight, gradients).items():
        np.testing.assert_allclose(ours[name], expected, atol=1e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize("shape", [(48, 48), (32, 96), (96, 32)])
def test_agrees_with_torch(shape):
    """torch iterates in bfloat16: 3 % of the update's norm, cosine 0.999."""
    specs = {"w": matrix_spec(*shape)}
    weight, *gradients = (random_like(specs, seed) for seed in range(4))
    parameter = torch.nn.Parameter(torch.tensor(weight["w"]))
    theirs = torch.optim.Muon(
        [parameter], lr=RATE, weight_decay=0.1, momentum=0.95, nesterov=False, adjust_lr_fn="match_rms_adamw"
    )
    ours = optimizer(specs)
    state = ours.init(weight)
    for grads in gradients:
        before = parameter.detach().numpy().copy()
        parameter.grad = torch.tensor(grads["w"])
        theirs.step()
        expected = parameter.detach().numpy() - before
        updates, state = ours.update(grads, state, {"w": before})
        got = np.asarray(updates["w"])
        assert np.linalg.norm(got - expected) < 0.03 * np.linalg.norm(expected)
        assert (got * expected).sum() > 0.999 * np.linalg.norm(got) * np.linalg.norm(expected)


def model_update(specs, grads, **options):
    transformation = scale_by_muon(specs, coefficients=MUON, **options)
    return jax.tree.map(np.asarray, jax.jit(transformation.update)(grads, transformation.init(grads))[0])


def muon_specs(tree):
    """The matrices of a spec tree, flat."""
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_spec)[0]
    return {jax.tree_util.keystr(path): spec for path, spec in leaves if spec.role == "matrix"}


def test_every_matrix_of_a_model_is_orthogonalised_on_its_own():
    """Gate and up apart, experts apart, layers apart, heads together; scale 0.2 sqrt(max(n, m))."""
    specs = muon_specs(model_specs())
    grads = random_like(specs, 0)
    for name, update in model_update(specs, grads).items():
        for got, gradient in zip(matrices_of(specs[name], update), matrices_of(specs[name], grads[name]), strict=True):
            expected = newton_schulz(gradient) * 0.2 * np.sqrt(max(gradient.shape))
            np.testing.assert_allclose(got, expected, atol=1e-5, err_msg=name)


def test_update_has_the_root_mean_square_asked_for():
    """sqrt(0.2 max(n, m)) would give 0.45."""
    specs = {"w": matrix_spec(64, 192)}
    update = model_update(specs, random_like(specs, 0))["w"]
    assert 0.15 < np.sqrt((update**2).mean()) < 0.22


def test_gate_and_up_are_two_matrices():
    """A huge gate gradient does not shrink the update of up, as orthogonalising [gate | up] together would."""
    specs = {"w13": model_specs()["moe"]["shared"]["w13"]}
    grads = random_like(specs, 0)
    large = {"w13": grads["w13"] * np.array([1e6, 1.0], np.float32)[:, None]}
    np.testing.assert_allclose(model_update(specs, large)["w13"], model_update(specs, grads)["w13"], atol=1e-4)


def test_layers_and_experts_do_not_see_each_other():
    """Perturbing one expert's gradient changes that expert's update alone, bit for bit."""
    specs = {"w2": model_specs()["moe"]["experts"]["w2"]}
    grads = random_like(specs, 0)
    other = {"w2": grads["w2"].copy()}
    other["w2"][1, 2] *= np.linspace(1, 9, other["w2"].shape[-1], dtype=np.float32)
    changed = (model_update(specs, grads)["w2"] != model_update(specs, other)["w2"]).any(axis=(-1, -2))
    assert changed.tolist() == [[False, False, False], [False, False, True]]


def test_stacking_of_leaves_does_not_matter():
    """A leaf stacked over layers, and the same layers as separate leaves beside transposed ones."""
    whole = {"w": matrix_spec(4, 6, 10)}
    apart = {f"w{i}": matrix_spec(6, 10) for i in range(4)} | {"t": matrix_spec(10, 6)}
    grads = random_like(whole, 0)
    cut = {f"w{i}": grads["w"][i] for i in range(4)} | {"t": grads["w"][0].T}
    stacked, separate = model_update(whole, grads)["w"], model_update(apart, cut)
    for i in range(4):
        np.testing.assert_allclose(separate[f"w{i}"], stacked[i], atol=1e-5)
    np.testing.assert_allclose(separate["t"].T, stacked[0], atol=1e-5)


def test_a_shard_of_a_matrix_would_give_another_update():
    """The update belongs to whole matrices: halves orthogonalised apart are visibly different."""
    whole, half = {"w": matrix_spec(12, 16)}, {"w": matrix_spec(12, 8)}
    grads = random_like(whole, 0)
    halves = [model_update(half, {"w": part})["w"] for part in np.split(grads["w"], 2, axis=1)]
    assert np.abs(np.concatenate(halves, axis=1) - model_update(whole, grads)["w"]).max() > 0.05


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(st.integers(0, 10**6), st.floats(-3, 3))
def test_first_update_ignores_the_scale_of_the_gradient(seed, exponent):
    grads = random_like(SMALL, seed)
    scaled = jax.tree.map(lambda g: np.float32(10**exponent) * g, grads)
    got, _ = SMALL_UPDATE(scaled, SMALL_MUON.init(scaled))
    expected, _ = SMALL_UPDATE(grads, SMALL_MUON.init(grads))
    np.testing.assert_allclose(got["w"], expected["w"], atol=2e-4)


SMALL = {"w": matrix_spec(2, 4, 6)}
SMALL_MUON = scale_by_muon(SMALL, coefficients=MUON)
SMALL_UPDATE = jax.jit(SMALL_MUON.update)


def test_momentum_is_float32_whatever_the_gradient():
    specs = {"w": matrix_spec(4, 6)}
    grads = {"w": jnp.asarray(random_like(specs, 0)["w"], jnp.bfloat16)}
    transformation = scale_by_muon(specs, coefficients=MUON)
    update, state = transformation.update(grads, transformation.init(grads))
    assert state.momentum["w"].dtype == update["w"].dtype == jnp.float32


def test_masked_leaves_pass():
    specs = {"a": matrix_spec(4, 6), "b": matrix_spec(4, 6)}
    grads = {"a": random_like(specs, 0)["a"], "b": optax.MaskedNode()}
    transformation = scale_by_muon(specs, coefficients=MUON)
    update, _ = transformation.update(grads, transformation.init(grads))
    assert isinstance(update["b"], optax.MaskedNode) and update["a"].shape == (4, 6)


def test_vectors_are_refused():
    norm = {"n": model_specs()["final_norm"]}
    with pytest.raises(ValueError, match="vector"):
        model_update(norm, random_like(norm, 0))


def test_segments_are_one_matrix():
    spec = model_specs()["moe"]["attention"]["kv_b"]
    specs, plain = {"w": spec}, {"w": dataclasses.replace(spec, segments=())}
    grads = random_like(specs, 0)
    np.testing.assert_array_equal(model_update(specs, grads)["w"], model_update(plain, grads)["w"])
