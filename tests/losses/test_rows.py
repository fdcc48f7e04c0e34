"""Sums over tokens, turns and branches of rows against loops in NumPy float64."""

from hypothesis import given, settings
from hypothesis import strategies as st
import jax.numpy as jnp
import numpy as np

from k2jax.losses import Rows
from tests.pallas_kernels.attention_oracle import tree_exit


@st.composite
def trees(draw):
    """Exit vectors [B, S] of random trees, values and turns of their tokens."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    batch, length, count = draw(st.sampled_from([(1, 2, 1), (2, 12, 5)]))
    exit = np.stack([tree_exit(length, rng) for _ in range(batch)])
    leaves = rng.integers(-1, length, (batch, count))
    return exit, rng.normal(size=(batch, length)), rng.integers(-1, count + 1, (batch, length)), leaves


def rows_of(exit):
    return Rows(jnp.asarray(exit), jnp.arange(exit.shape[1]))


@settings(max_examples=12)
@given(trees())
def test_a_branch_sums_its_path_from_the_root(problem):
    exit, values, _, leaves = problem
    sums = rows_of(exit).path_sum(jnp.asarray(values), jnp.asarray(leaves))
    for row, branches in enumerate(leaves):
        for branch, leaf in enumerate(branches):
            path = [values[row, t] for t in range(leaf + 1) if leaf < exit[row, t]]
            np.testing.assert_allclose(sums[row, branch], sum(path), atol=1e-5)


@settings(max_examples=12)
@given(trees())
def test_a_turn_sums_its_tokens_and_ids_outside_belong_to_none(problem):
    exit, values, turns, leaves = problem
    count = leaves.shape[1]
    sums = rows_of(exit).segment_sum(jnp.asarray(values), jnp.asarray(turns), count)
    assert sums.shape == (len(exit), count)
    for row in range(len(exit)):
        for turn in range(count):
            np.testing.assert_allclose(sums[row, turn], values[row][turns[row] == turn].sum(), atol=1e-5)


def test_on_one_device_the_sum_is_that_of_all_values():
    exit = np.full((2, 3), 3)
    assert float(rows_of(exit).sum(jnp.arange(6.0).reshape(2, 3))) == 15.0
    assert float(rows_of(exit).sum(jnp.ones((2, 5)))) == 10.0
