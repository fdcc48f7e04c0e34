"""Quantiles that are made of sums are those of the values."""

from hypothesis import given
from hypothesis import strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.losses.quantiles import BOUNDS, quantile, sums_above
from k2jax.losses.rows import Rows


def shares_above(values, weights):
    rows = Rows(jnp.full(values.shape, values.shape[1]), jnp.arange(values.shape[1]))
    sums = sums_above(rows, jnp.asarray(values, jnp.float32), jnp.asarray(weights, jnp.float32))
    return np.asarray(sums) / weights.sum()


@given(seed=st.integers(0, 2**16), scale=st.sampled_from([1e-6, 1e-3, 1.0]), share=st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_of_sums_is_that_of_the_sampled_values_to_within_a_quarter(seed, scale, share):
    rng = np.random.default_rng(seed)
    values = scale * rng.lognormal(0.0, 1.5, (4, 800))
    weights = (rng.random(values.shape) < 0.7).astype(np.float32)
    sampled = values[weights > 0]
    found = quantile(shares_above(values, weights), share, sampled.max())
    exact = np.quantile(sampled, share, method="inverted_cdf")
    assert 1 / 1.26 < found / exact < 1.26
    assert found <= sampled.max()


def test_values_below_and_above_all_bounds_have_a_quantile():
    assert quantile(np.zeros(len(BOUNDS)), 0.99, 1e-9) == 0
    assert quantile(np.ones(len(BOUNDS)), 0.99, 300.0) == 300.0
    assert quantile((BOUNDS < 2e-3).astype(float), 0.99, 2e-3) == pytest.approx(2e-3, rel=1e-6)
