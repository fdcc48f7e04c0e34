"""The router-bias rule: direction, size, schedule, and that load evens out."""

from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from k2jax.optim.balance import balance_router_bias, load_sign
from k2jax.params import ParamSpec

COUNTS = st.lists(st.integers(0, 2**24), min_size=2, max_size=6)


def bias_specs(*groups):
    """One router-bias leaf per (first layer, layers), two experts."""
    axes = ("layers", "experts")
    return {
        f"g{first}": ParamSpec((n, 2), axes, "router_bias", ("experts",), hf="b", init="zeros", first_layer=first)
        for first, n in groups
    }


@given(COUNTS)
def test_sign_is_exact(counts):
    expected = np.sign(np.mean(np.array(counts, np.float64)) - np.array(counts, np.float64))
    got = np.asarray(load_sign(jnp.array([counts], jnp.int32)))[0]
    far = np.abs(np.mean(counts) - np.array(counts)) > 1e-5 * (1 + max(counts))
    np.testing.assert_array_equal(got[far], expected[far])


@given(st.integers(0, 2**30), st.sampled_from([2, 7, 384]))
def test_equal_counts_move_nothing(count, experts):
    assert not np.asarray(load_sign(jnp.full((1, experts), count, jnp.int32))).any()


def test_each_layer_group_gets_its_rows_and_the_rate_follows_the_step():
    specs = bias_specs((10, 1), (3, 2))  # tree order is not layer order
    transformation = balance_router_bias(specs, optax.linear_schedule(1e-3, 0.0, 2))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape), specs, is_leaf=lambda x: isinstance(x, ParamSpec))
    state = transformation.init(zeros)
    tokens = jnp.array([[9, 1], [5, 5], [1, 9]], jnp.int32)  # layers 3, 4 and 10
    for rate in (1e-3, 5e-4, 0.0, 0.0):
        update, state = transformation.update(zeros, state, zeros, expert_tokens=tokens)
        np.testing.assert_allclose(update["g3"], rate * np.array([[-1, 1], [0, 0]]))
        np.testing.assert_allclose(update["g10"], rate * np.array([[1, -1]]))


def test_gradients_do_not_reach_the_bias_and_no_sum_over_layers():
    specs = bias_specs((0, 1))
    transformation = balance_router_bias(specs, lambda step: 1e-3)
    gradient = {"g0": jnp.array([[1e3, 1e3]])}
    update, _ = transformation.update(gradient, transformation.init(gradient), expert_tokens=jnp.array([[4, 0]]))
    np.testing.assert_allclose(update["g0"], [[-1e-3, 1e-3]])


@pytest.mark.parametrize("tokens", [None, np.ones((2, 2), np.int32), np.ones((1, 3), np.int32), np.ones(2, np.int32)])
def test_a_missing_or_misshapen_statistic_is_an_error(tokens):
    specs = bias_specs((0, 1))
    transformation = balance_router_bias(specs, lambda step: 1e-3)
    bias = {"g0": jnp.zeros((1, 2))}
    with pytest.raises(ValueError, match="expert_tokens"):
        transformation.update(bias, transformation.init(bias), expert_tokens=tokens)


def test_a_weight_that_is_no_router_bias_is_refused():
    specs = {**bias_specs((0, 1)), "norm": ParamSpec((3,), ("embed",), "norm", ("embed",), hf="n")}
    transformation = balance_router_bias(specs, lambda step: 1e-3)
    weights = {"g0": jnp.zeros((1, 2)), "norm": jnp.ones(3)}
    with pytest.raises(ValueError, match="only router biases"):
        transformation.update(weights, transformation.init(weights), expert_tokens=jnp.ones((1, 2), jnp.int32))
