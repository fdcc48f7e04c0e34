"""Errors clustered by task against independent formulas, exact enumeration, and how often intervals hold the truth."""

from fractions import Fraction
from itertools import combinations
import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import scipy.stats

from k2jax.evaluate.statistics import (
    best_of_n,
    cluster_bootstrap,
    clustered_mean,
    majority_vote,
    paired_difference,
    t_quantile,
)

CLUSTERS = st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=5), min_size=2, max_size=7)


def flat(clusters):
    return [score for scores in clusters for score in scores], [i for i, s in enumerate(clusters) for _ in s]


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 30, 99, 200, 201, 1000, 10**6])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_quantiles_are_those_of_students_t(degrees, confidence):
    expected = scipy.stats.t.ppf((1 + confidence) / 2, degrees)
    assert t_quantile(degrees, confidence) == pytest.approx(expected, rel=1e-8)


@given(CLUSTERS)
def test_the_error_is_the_sandwich_of_a_regression_on_a_constant(clusters):
    """With design matrix, bread and meat as in a text book, in exact fractions."""
    scores, tasks = flat(clusters)
    design = [Fraction(1)] * len(scores)
    bread = 1 / sum(x * x for x in design)
    beta = bread * sum(x * y for x, y in zip(design, scores, strict=True))
    meat = Fraction(0)
    for task in set(tasks):
        meat += sum(y - beta for y, t in zip(scores, tasks, strict=True) if t == task) ** 2
    groups = len(set(tasks))
    variance = bread * meat * bread * Fraction(groups, groups - 1)
    found = clustered_mean(scores, tasks)
    assert found.value == pytest.approx(float(beta), abs=1e-12)
    assert found.error == pytest.approx(math.sqrt(variance), abs=1e-7)
    assert (found.tasks, found.samples) == (groups, len(scores))


def test_equal_clusters_have_the_error_and_interval_of_their_means():
    scores = np.random.default_rng(0).normal(size=(20, 6))
    found = clustered_mean(scores.ravel(), np.repeat(np.arange(20), 6))
    means = scores.mean(1)
    interval = scipy.stats.t.interval(0.95, 19, means.mean(), scipy.stats.sem(means))
    np.testing.assert_allclose(found[:4], [means.mean(), scipy.stats.sem(means), *interval], rtol=1e-9)


def test_samples_of_one_task_are_no_further_tasks():
    scores, tasks = [0.0, 1.0, 1.0, 0.0, 1.0], list("abcde")
    once, often = clustered_mean(scores, tasks), clustered_mean(np.repeat(scores, 10), np.repeat(tasks, 10))
    assert often.error == pytest.approx(once.error)
    assert often.high - often.low == pytest.approx(once.high - once.low, rel=0.05)


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_scores_that_are_all_the_same_have_an_interval_of_a_width_inside_0_and_1(score):
    found = clustered_mean([score] * 40, range(40))
    assert found.error == 0.0 and found.low <= score <= found.high
    assert 0.05 < found.high - found.low < 0.15 and found.low >= 0.0 and found.high <= 1.0


def test_one_task_says_nothing_about_others():
    found = clustered_mean([1.0, 0.0], ["a", "a"])
    assert math.isnan(found.error) and (found.low, found.high) == (0.0, 1.0)
    assert paired_difference({"a": [0.0]}, {"a": [1.0]}).is_noise
    with pytest.raises(ValueError):
        clustered_mean([], [])
    with pytest.raises(ValueError):
        clustered_mean([math.nan], ["a"])


def test_the_bootstrap_has_the_same_error_and_interval():
    rng = np.random.default_rng(3)
    scores = rng.random((150, 3)) < rng.beta(1, 1, (150, 1))
    arguments = scores.ravel().astype(float), np.repeat(np.arange(150), 3)
    exact, drawn = clustered_mean(*arguments), cluster_bootstrap(*arguments, resamples=4000)
    assert drawn.value == exact.value
    assert drawn.error == pytest.approx(exact.error, rel=0.05)
    assert [drawn.low, drawn.high] == pytest.approx([exact.low, exact.high], abs=0.15 * (exact.high - exact.low))


def coverage(scores_RTS, truth):
    """Share of runs whose interval holds the truth; the vectors of a run are as ``clustered_mean`` takes them."""
    tasks = np.repeat(np.arange(scores_RTS.shape[1]), scores_RTS.shape[2])
    found = [clustered_mean(scores.ravel(), tasks) for scores in scores_RTS]
    return np.mean([each.low <= truth <= each.high for each in found])


@pytest.mark.slow
def test_intervals_hold_the_truth_in_95_of_100_runs():
    rng = np.random.default_rng(11)
    scores = rng.random((10_000, 200, 2)) < rng.beta(2, 1, (10_000, 200, 1))
    assert coverage(scores.astype(float), 2 / 3) == pytest.approx(0.95, abs=0.01)


def test_intervals_of_400_runs_hold_the_truth_and_unclustered_ones_do_not():
    rng = np.random.default_rng(12)
    scores = (rng.random((400, 200, 4)) < rng.beta(0.5, 0.5, (400, 200, 1))).astype(float)
    assert 0.92 <= coverage(scores, 0.5) <= 0.98
    assert coverage(scores.reshape(400, 800, 1), 0.5) < 0.85


@pytest.mark.parametrize(
    ("pairs", "tolerance"), [(300, 0.03), pytest.param(2000, 0.015, marks=pytest.mark.slow)], ids=["300", "2000"]
)
def test_differences_of_pairs_of_runs_are_held_by_their_intervals(pairs, tolerance):
    rng, tasks = np.random.default_rng(13), 200
    hardness = rng.beta(1, 1, (pairs, tasks, 1))
    first, second = (rng.random((pairs, tasks, 2)) < chance for chance in (hardness, np.clip(hardness + 0.05, 0, 1)))
    truth = 0.05 - 0.05**2 / 2  # of those above 0.95 a part is cut off
    held = 0
    for one, other in zip(first.tolist(), second.tolist(), strict=True):
        found = paired_difference(dict(enumerate(one)), dict(enumerate(other)))
        held += found.low <= truth <= found.high
    assert held / pairs == pytest.approx(0.95, abs=tolerance)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=30))
def test_a_paired_difference_is_that_of_the_paired_t_test(pairs):
    found = paired_difference({i: [a] for i, (a, _) in enumerate(pairs)}, {i: [b] for i, (_, b) in enumerate(pairs)})
    differences = [b - a for a, b in pairs]
    assert found.value == pytest.approx(np.mean(differences), abs=1e-12)
    if len(set(differences)) > 1:
        interval = scipy.stats.ttest_1samp(differences, 0).confidence_interval(0.95)
        assert [found.low, found.high] == pytest.approx([interval.low, interval.high], rel=1e-7)
        assert found.is_noise == (scipy.stats.ttest_1samp(differences, 0).pvalue >= 0.05)
    else:
        assert found.low < found.value < found.high


def test_only_tasks_of_both_runs_are_compared():
    found = paired_difference({"a": [0], "b": [0], "c": [1]}, {"b": [1], "a": [1, 0], "d": [0]})
    assert (found.value, found.tasks, found.left_out) == (0.75, 2, 2)
    with pytest.raises(ValueError, match="no task in common"):
        paired_difference({"a": [0]}, {"b": [0]})


def test_the_majority_votes_and_ties_are_drawn():
    assert majority_vote(["4", "4", "5"], [True, True, False]) == 1.0
    assert majority_vote(["4", "5", "5"], [True, False, False]) == 0.0
    assert majority_vote(["4", "5"], [True, False]) == 0.5
    assert majority_vote([None, None, "4"], [False, False, True]) == 1.0
    assert majority_vote([None, None], [False, False]) == 0.0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=6), st.data())
def test_the_best_of_n_is_the_mean_over_all_choices(samples, data):
    n = data.draw(st.integers(1, len(samples)))
    means = []
    for chosen in combinations(samples, n):
        best = max(value for value, _ in chosen)
        means.append(np.mean([score for value, score in samples if value == best]))
    values, scores = zip(*samples, strict=True)
    assert best_of_n(values, scores, n) == pytest.approx(np.mean(means))
    with pytest.raises(ValueError):
        best_of_n(values, scores, len(samples) + 1)
