"""Means of scores with their errors, where the samples of one task are alike, and differences of two runs.

Tasks are taken as drawn at random; several samples of one are no further tasks. All errors are therefore clustered by
task, and differences are taken within tasks, which two runs share (Miller 2024, arXiv:2411.00640).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
import functools
import math
from statistics import NormalDist, fmean
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
"""Confidence level of all intervals."""
_EXACT_DEGREES = 200
"""Degrees of freedom up to which quantiles of Student's t are exact; above them an expansion has nine digits."""
_NUMBERS_AT_ONCE = 1 << 22
"""Numbers of a bootstrap in memory at a time."""


class MeanEstimate(NamedTuple):
    """A mean with its error.

    Attributes:
        value: the estimate.
        error: its standard error, clustered by task.
        low: lower end of the interval of the level ``CONFIDENCE``.
        high: upper end.
        tasks: clusters that it was made from.
        samples: scores that it was made from.
    """

    value: float
    error: float
    low: float
    high: float
    tasks: int
    samples: int


class PairedDifference(NamedTuple):
    """How much better the second of two runs is on the tasks that both have.

    Attributes:
        value: mean over tasks of the second run's mean score less the first's.
        error: its standard error.
        low: lower end of its interval.
        high: upper end.
        tasks: that both runs have.
        left_out: tasks that only one of them has.
    """

    value: float
    error: float
    low: float
    high: float
    tasks: int
    left_out: int

    @property
    def is_noise(self) -> bool:
        """Whether the interval holds 0: the tasks do not tell the runs apart."""
        return self.low <= 0.0 <= self.high


def clustered_mean(scores: Sequence[float], tasks: Sequence[Hashable], *, trials: float | None = None) -> MeanEstimate:
    """The mean of all scores with its standard error clustered by task.

    The error is the cluster-robust one of a regression on a constant (CR1): with so many samples of each task as of the
    others, the standard error of the tasks' means. The interval is Student's t with one degree of freedom less than
    tasks. Where all scores are between 0 and 1 it is Wilson's of as many trials as would give that error, with the
    quantile of Student's t: it stays between 0 and 1, and has a width also where all scores are the same. Of one task
    neither is known: the error is nan, and the interval holds everything.

    Args:
        scores: one for each sample.
        tasks: the task of each.
        trials: most independent yes-or-no trials that scores between 0 and 1 are worth; None is their number where all
            are 0 or 1, and else no bound.

    Raises:
        ValueError: there is no score, or one is not finite.
    """
    sums_T, counts_T = _by_task(scores, tasks)
    total, clusters = int(counts_T.sum()), len(sums_T)
    mean = float(sums_T.sum() / total)
    deviations_T = sums_T - counts_T * mean
    squares = float((deviations_T**2).sum())
    error = math.sqrt(squares * clusters / (clusters - 1)) / total if clusters > 1 else math.nan
    scores_N = np.asarray(scores, float)
    if scores_N.min() >= 0.0 and scores_N.max() <= 1.0:
        is_binary = bool(np.isin(scores_N, (0.0, 1.0)).all())
        most = trials if trials is not None else total if is_binary else math.inf
        low, high = _share_interval(mean, error, clusters, most)
    else:
        half = t_quantile(clusters - 1) * error if clusters > 1 else math.inf
        low, high = mean - half, mean + half
    return MeanEstimate(mean, error, low, high, clusters, total)


def cluster_bootstrap(
    scores: Sequence[float], tasks: Sequence[Hashable], *, resamples: int = 2000, seed: int = 0
) -> MeanEstimate:
    """As ``clustered_mean``, by drawing tasks with replacement: a check that assumes no distribution.

    The interval is that of percentiles, which is too narrow for fewer than some thirty tasks.

    Args:
        scores: one for each sample.
        tasks: the task of each.
        resamples: number of drawn sets of tasks.
        seed: of the draws.

    Raises:
        ValueError: there is no score, or one is not finite.
    """
    sums_T, counts_T = _by_task(scores, tasks)
    rng, clusters = np.random.default_rng(seed), len(sums_T)
    at_once = max(1, _NUMBERS_AT_ONCE // clusters)
    means = []
    for begin in range(0, resamples, at_once):
        rows = min(at_once, resamples - begin)
        drawn_RT = rng.integers(clusters, size=(rows, clusters))
        means.append(sums_T[drawn_RT].sum(1) / counts_T[drawn_RT].sum(1))
    means_R = np.concatenate(means)
    low, high = np.quantile(means_R, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    mean, error = float(sums_T.sum() / counts_T.sum()), float(means_R.std(ddof=1))
    return MeanEstimate(mean, error, float(low), float(high), clusters, int(counts_T.sum()))


def paired_difference(
    first: Mapping[Hashable, Sequence[float]], second: Mapping[Hashable, Sequence[float]]
) -> PairedDifference:
    """How much better the second run is, from the scores of each task's samples.

    The interval is Student's t over the tasks' differences. Where all of those are equal, they say nothing about their
    spread; the interval is then as wide as Wilson's of a share of which so many trials found none. Of one task the
    error is nan, and the interval holds everything.

    Args:
        first: scores by task.
        second: scores by task.

    Raises:
        ValueError: the runs have no task in common.
    """
    common = [task for task in first if task in second]
    if not common:
        raise ValueError("the runs have no task in common")
    differences_T, tasks = np.array([fmean(second[task]) - fmean(first[task]) for task in common]), len(common)
    value = float(differences_T.mean())
    left_out = len(first.keys() ^ second.keys())
    if tasks < 2:
        return PairedDifference(value, math.nan, -math.inf, math.inf, tasks, left_out)
    z, error = t_quantile(tasks - 1), float(differences_T.std(ddof=1)) / math.sqrt(tasks)
    half = z * error if error else z**2 / (tasks + z**2)
    return PairedDifference(value, error, value - half, value + half, tasks, left_out)


def majority_vote(answers: Sequence[Hashable | None], is_right: Sequence[bool]) -> float:
    """Whether the most frequent answer to a task is right.

    Args:
        answers: of the samples; None is no answer, and has no vote.
        is_right: whether each is right; the same answers may differ in that, and count by their mean.

    Returns:
        1 or 0; between them where several answers are equally frequent, of which one is drawn, or where the same
        answers were judged otherwise.
    """
    votes: dict[Hashable, list[bool]] = defaultdict(list)
    for answer, right in zip(answers, is_right, strict=True):
        if answer is not None:
            votes[answer].append(right)
    if not votes:
        return 0.0
    most = max(map(len, votes.values()))
    return float(np.mean([np.mean(marks) for marks in votes.values() if len(marks) == most]))


def best_of_n(values: Sequence[float], scores: Sequence[float], n: int) -> float:
    """Mean score of the sample that a judge picks among n of a task's samples, over all choices of n.

    Args:
        values: what the judge gives each sample; among equal ones one is drawn.
        scores: what each is worth.
        n: at least 1, and at most the number of samples.

    Raises:
        ValueError: there are fewer than n samples.
    """
    values_N, scores_N = np.asarray(values, float), np.asarray(scores, float)
    if not 1 <= n <= len(values_N):
        raise ValueError(f"there are {len(values_N)} samples, and the best of {n} is asked for")
    chosen, total = 0.0, math.comb(len(values_N), n)
    for value in np.unique(values_N):
        # The best of a choice has this value where none is better and not all are worse.
        at_most, below = int((values_N <= value).sum()), int((values_N < value).sum())
        share = (math.comb(at_most, n) - math.comb(below, n)) / total
        chosen += share * float(scores_N[values_N == value].mean())
    return chosen


@functools.cache
def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """What Student's t exceeds in size with probability ``1 - confidence``.

    Raises:
        ValueError: ``degrees`` is not positive.
    """
    if degrees < 1:
        raise ValueError("Student's t has at least one degree of freedom")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    if degrees > _EXACT_DEGREES:  # Abramowitz and Stegun 26.7.5
        terms = (
            (z**3 + z) / 4,
            (5 * z**5 + 16 * z**3 + 3 * z) / 96,
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
            (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
        )
        return z + sum(term / degrees ** (power + 1) for power, term in enumerate(terms))
    low, high = 0.0, 1.0
    while _within(high, degrees) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < confidence else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """Probability that Student's t is at most ``t`` in size (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(degrees))
    term, cosine = 1.0, math.cos(angle)
    total = 0.0
    if degrees % 2:
        term = cosine
        for k in range(1, (degrees - 1) // 2 + 1):
            total += term
            term *= cosine**2 * (2 * k) / (2 * k + 1)
        return 2 / math.pi * (angle + math.sin(angle) * total)
    for k in range(1, degrees // 2 + 1):
        total += term
        term *= cosine**2 * (2 * k - 1) / (2 * k)
    return math.sin(angle) * total


def _by_task(scores: Sequence[float], tasks: Sequence[Hashable]) -> tuple[np.ndarray, np.ndarray]:
    """Sums and numbers of the scores of each task, float64 and int64 ``[tasks]``."""
    scores_N = np.asarray(scores, float)
    if not len(scores_N) or not np.isfinite(scores_N).all():
        raise ValueError("there are no scores, or they are not finite")
    places = np.fromiter(_places(tasks), np.int64, len(tasks))
    if len(places) != len(scores_N):
        raise ValueError(f"{len(scores_N)} scores of {len(places)} tasks")
    return np.bincount(places, weights=scores_N), np.bincount(places)


def _places(tasks: Iterable[Hashable]) -> Iterator[int]:
    numbers: dict[Hashable, int] = {}
    for task in tasks:
        yield numbers.setdefault(task, len(numbers))


def _share_interval(share: float, error: float, tasks: int, most: float) -> tuple[float, float]:
    """Wilson's interval of at most ``most`` trials that would give the error, with Student's quantile."""
    if tasks < 2:
        return 0.0, 1.0
    z, is_at_end = t_quantile(tasks - 1), share in (0.0, 1.0) or not error
    trials = float(tasks) if is_at_end else min(share * (1 - share) / error**2, most)
    center = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2) / (1 + z**2 / trials)
    return max(0.0, min(center - half, share)), min(1.0, max(center + half, share))
