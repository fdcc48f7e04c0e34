"""The weight table: matrix views, names, initial values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.config import model_preset, replace_keys
from k2jax.model import model_specs
from k2jax.params import ParamSpec, count, from_matrices, hf_tensors, initialize, map_specs, named_specs, to_matrices


def test_matrix_view_puts_gate_and_up_in_the_stack():
    axes = ("layers", "experts", "embed", "gate_up", "ffn")
    spec = ParamSpec((2, 3, 5, 2, 7), axes, "matrix", ("ffn",), hf="x", inputs=("embed",))
    leaf = np.random.default_rng(0).normal(size=spec.shape)
    matrices = np.asarray(to_matrices(spec, leaf))
    assert matrices.shape == (2, 3, 2, 5, 7)
    assert np.array_equal(matrices[1, 2, 1], leaf[1, 2, :, 1, :])
    assert np.array_equal(from_matrices(spec, matrices), leaf)


@pytest.mark.parametrize("preset", ["nano", "moonlight"])
def test_matrix_view_is_invertible_for_every_weight(preset):
    for _, spec in named_specs(model_specs(model_preset(preset))):
        if spec.size < 2_000_000:
            leaf = np.arange(spec.size).reshape(spec.shape)
            assert np.array_equal(from_matrices(spec, to_matrices(spec, leaf)), leaf)


def test_hugging_face_names_are_unique_and_number_layers_through_the_model():
    config = model_preset("moonlight")
    names = [name for _, spec in named_specs(model_specs(config)) for name, _ in hf_tensors(spec)]
    assert len(names) == len(set(names))
    for expected in (
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.1.mlp.experts.63.up_proj.weight",
        "model.layers.26.mlp.gate.e_score_correction_bias",
        "model.layers.26.self_attn.q_proj.weight",
        "lm_head.weight",
    ):
        assert expected in names
    assert not any("layers.27." in name or "layers.0.mlp.experts" in name for name in names)


def test_initial_values_follow_the_declaration_and_depend_on_the_path_alone():
    specs = model_specs(replace_keys(model_preset("nano"), {"layers": 2, "vocab": 1024}))
    params = jax.jit(lambda: initialize(specs, jax.random.key(1), 0.02))()
    for (name, spec), leaf in zip(named_specs(specs), jax.tree.leaves(params), strict=True):
        assert leaf.shape == spec.shape and leaf.dtype == jnp.float32, name
        if spec.role == "norm":
            assert (leaf == 1).all(), name
        elif spec.role == "router_bias":
            assert not leaf.any(), name
        else:
            assert abs(float(leaf.std()) / 0.02 - 1) < 0.1, name
    alone = initialize({"moe": {"router": specs["moe"]["router"]}}, jax.random.key(1), 0.02)
    np.testing.assert_allclose(alone["moe"]["router"], params["moe"]["router"], rtol=1e-5)


def test_inconsistent_declarations_are_refused():
    with pytest.raises(ValueError):
        ParamSpec((2, 3), ("a",), "matrix", ("a",), hf="x")
    with pytest.raises(ValueError):
        ParamSpec((2,), ("a",), "weight", ("a",), hf="x")
    with pytest.raises(ValueError):
        ParamSpec((2, 3), ("a", "b"), "matrix", ("b",), hf="x", inputs=("a",), segments=(("q", 2),))


def test_count_leaves_router_biases_out():
    specs = model_specs(model_preset("nano"))
    everything = sum(jax.tree.leaves(map_specs(lambda spec: spec.size, specs)))
    assert everything - count(specs) == 3 * 32
