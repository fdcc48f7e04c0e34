"""The Muon update against float64 NumPy, optax and torch, and regressions that public code has had."""

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


@pytest.mark.parametrize("shape", [(48, 48), (96, 32)])
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
