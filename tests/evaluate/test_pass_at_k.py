"""Estimates of pass@k, Avg@k and pass^k against all subsets, and how often their intervals hold the truth."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy.stats import binomtest

from k2jax.evaluate.pass_at_k import average_at_k, pass_at_k, pass_hat_k, summarize_samples


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=7), min_size=1, max_size=5), st.integers(1, 3))
def test_estimates_are_means_over_all_subsets_of_k_samples(tasks, k):
    correct, samples = np.array([sum(task) for task in tasks]), np.array([len(task) for task in tasks])
    any_of, all_of, share_of = (
        np.mean([np.mean([how(subset) for subset in combinations(task, k)]) for task in tasks])
        for how in (any, all, np.mean)
    )
    np.testing.assert_allclose(pass_at_k(correct, samples, k).value, any_of, rtol=1e-12)
    np.testing.assert_allclose(pass_hat_k(correct, samples, k).value, all_of, rtol=1e-12)
    np.testing.assert_allclose(average_at_k(correct, samples, k).value, share_of, rtol=1e-12)


def test_many_samples_neither_overflow_nor_round_to_nothing():
    assert pass_at_k([1], [5000], 100).value == pytest.approx(0.02, rel=1e-12)
    assert pass_hat_k([4999], [5000], 100).value == pytest.approx(0.98, rel=1e-12)


@given(st.integers(250, 500), st.data())
def test_one_sample_of_each_of_many_tasks_has_nearly_wilsons_interval(total, data):
    successes = data.draw(st.integers(0, total))
    interval = binomtest(successes, total).proportion_ci(method="wilson")
    found = average_at_k(np.arange(total) < successes, np.ones(total), 1)
    np.testing.assert_allclose(
        [found.value, found.low, found.high], [successes / total, interval.low, interval.high], atol=1e-3
    )
    assert found.tasks == total


@pytest.mark.parametrize("estimate", [average_at_k, pass_at_k, pass_hat_k])
@pytest.mark.parametrize("hardness", [(0.5, 0.5), (8.0, 2.0), (0.3, 3.0)])
def test_the_interval_holds_the_truth_as_often_as_it_says(estimate, hardness):
    """Tasks with chances from a Beta distribution; the truth is a mean over very many of them."""
    rng, tasks, samples, k, trials = np.random.default_rng(7), 40, 8, 4, 600
    chances = rng.beta(*hardness, 400_000)
    truth = {average_at_k: chances, pass_at_k: 1 - (1 - chances) ** k, pass_hat_k: chances**k}[estimate].mean()
    held = 0
    for _ in range(trials):
        correct = rng.binomial(samples, rng.beta(*hardness, tasks))
        found = estimate(correct, np.full(tasks, samples), k)
        held += found.low <= truth <= found.high
    assert 0.92 <= held / trials <= 0.99


@pytest.mark.parametrize(("right", "value"), [(0, 0.0), (8, 1.0), (4, 0.5)])
def test_tasks_that_agree_leave_some_doubt(right, value):
    found = average_at_k(np.full(20, right), np.full(20, 8), 8)
    assert found.value == value and found.tasks == 20
    assert 0.05 < found.high - found.low < 0.45
    assert 0 <= found.low <= value <= found.high <= 1


def test_tasks_with_too_few_samples_are_left_out_and_the_rest_is_counted():
    found = summarize_samples([8, 7, 0], [8, 7, 8], 8)
    assert {name: (estimate.value, estimate.tasks) for name, estimate in found.items()} == {
        "avg@8": (0.5, 2),
        "pass@8": (0.5, 2),
        "pass^8": (0.5, 2),
    }


@pytest.mark.parametrize(
    ("correct", "samples", "k", "words"),
    [([3], [4], 5, "no task has 5"), ([], [], 1, "no task"), ([1], [1], 0, "0 samples"), ([5], [4], 2, "more right")],
)
def test_what_cannot_be_estimated_is_refused(correct, samples, k, words):
    with pytest.raises(ValueError, match=words):
        pass_at_k(correct, samples, k)
