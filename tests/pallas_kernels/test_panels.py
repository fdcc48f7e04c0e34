"""Routed experts with weights in panels: exact for any routing, for few copies as for many."""

import functools
import math

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.routed_experts import panels
from tests.pallas_kernels.expert_oracle import ROUTINGS, loop_oracle, route

D, F = 72, 80  # gate and up are two panels and a half, down is one and an eighth
SHAPES = [(1, 2, 6), (2, 3, 5), (16, 4, 8), (61, 2, 3)]  # T, K, E; few copies, then many
run = jax.jit(panels.experts_of_panels, static_argnames=("capacity_factor", "block"))


def inputs(tokens, active, experts, seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    shapes = (tokens, D), (experts, D, 2, F), (experts, F, D), (tokens, active)
    x, w13, w2, gates = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    w13, w2 = w13 / math.sqrt(D), w2 / math.sqrt(F)
    return *(jnp.asarray(each, dtype) for each in (x, w13, w2)), np.abs(gates)


def outputs(x, w13, w2, gates, ids, **settings):
    settings = {"capacity_factor": 1.06, "block": 4} | settings
    return np.asarray(run(x, panels.split(w13), panels.split(w2), ids, gates, **settings), np.float64)


@pytest.mark.parametrize(("shape", "capacity_factor"), [*((shape, 1.06) for shape in SHAPES), (SHAPES[-1], 0.1)])
@given(st.sampled_from(ROUTINGS), st.integers(0, 2**31))
@settings(max_examples=4)
def test_equals_each_token_by_itself(shape, capacity_factor, pattern, seed):
    ids = route(pattern, *shape, seed)
    x, w13, w2, gates = inputs(*shape, seed)
    unread = (ids == shape[2]).all(1)
    y = outputs(jnp.where(unread[:, None], jnp.nan, x), w13, w2, gates, ids, capacity_factor=capacity_factor)
    np.testing.assert_allclose(y, loop_oracle(x, w13, w2, gates, ids), rtol=0, atol=1e-4)


def test_few_copies_read_their_own_experts_alone():
    """NaN in the weights of all others does not reach the tokens, nor is any of them a product's operand."""
    experts = 12
    ids = np.array([[3, 7], [7, 0]], np.int32)
    x, w13, w2, gates = inputs(2, 2, experts, 0)
    others = ~np.isin(np.arange(experts), ids)
    y = outputs(x, w13.at[others].set(np.nan), w2.at[others].set(np.nan), gates, ids)
    np.testing.assert_allclose(y, loop_oracle(x, w13, w2, gates, ids), rtol=0, atol=1e-4)
    program = jax.make_jaxpr(functools.partial(panels.experts_of_panels, capacity_factor=1.0))
    text = str(program(x, panels.split(w13), panels.split(w2), ids, gates))
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products and not any(f"[{experts}," in line for line in products)


def test_many_rows_are_multiplied_by_the_whole_weight(monkeypatch):
    ids, (x, w13, w2, gates) = route("uniform", 40, 2, 4, 0), inputs(40, 2, 4, 0)
    monkeypatch.setattr(panels, "_DIVIDED", 24 * D * 2 * F)  # of gate and up, of 24 rows; down has half as many
    traced = jax.jit(functools.partial(panels.experts_of_panels, capacity_factor=1.06)).trace(
        *(arguments := (x, panels.split(w13), panels.split(w2), ids, gates))
    )
    text = str(traced.jaxpr)
    assert f"f32[4,24,{2 * F}] = dot_general" in text and f"f32[4,24,{D}] = dot_general" not in text
    y = traced.lower().compile()(*arguments)
    np.testing.assert_allclose(y, loop_oracle(x, w13, w2, gates, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]])
def test_bfloat16(shape):
    ids, arrays = route("uniform", *shape, 1), inputs(*shape, 1, jnp.bfloat16)
    y = outputs(*arrays, ids)
    exact = loop_oracle(*arrays, ids)
    assert np.abs(y - exact).max() < 0.03 * np.abs(exact).max()


@pytest.mark.parametrize("width", [1, 64, 65, 512, 513])
def test_a_weight_comes_out_as_it_went_in(width):
    weight = jnp.arange(3 * 5 * width, dtype=jnp.float32).reshape(3, 5, width)
    parts = panels.split(weight)
    assert len(parts) == (1 if width > panels.WIDTH * panels.MAX_PANELS else -(-width // panels.WIDTH))
    np.testing.assert_array_equal(panels.join(parts, weight.shape), weight)
