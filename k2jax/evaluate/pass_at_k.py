"""How often a model solves tasks, from several samples of each, and how sure that is.

pass@k is the chance that at least one of k samples is right, pass^k that all of them are, Avg@k the mean share of right
samples; each is estimated for a task without bias from n >= k samples and averaged over tasks. Tasks are taken as drawn
at random and samples of one task as alike: intervals are over tasks.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
"""Confidence level of all intervals."""


class ShareEstimate(NamedTuple):
    """A share between 0 and 1 with its confidence interval.

    Attributes:
        value: the estimate.
        low: lower end of the interval.
        high: upper end.
        tasks: tasks that it was made from.
    """

    value: float
    low: float
    high: float
    tasks: int


def proportion(successes: int, total: int) -> ShareEstimate:
    """A share of independent trials, such as greedy accuracy, with Wilson's score interval (1927).

    Raises:
        ValueError: there is no trial, or more successes than trials.
    """
    if not 0 <= successes <= total or not total:
        raise ValueError(f"{successes} successes of {total} trials is no share")
    return _wilson(successes / total, total, total)


def average_at_k(correct: np.ndarray, samples: np.ndarray, k: int) -> ShareEstimate:
    """Avg@k: the mean over tasks of the share of right samples; arguments and interval as of ``pass_at_k``."""
    return _over_tasks(correct, samples, k, lambda right, drawn: right / drawn)


def pass_at_k(correct: np.ndarray, samples: np.ndarray, k: int) -> ShareEstimate:
    """pass@k, the chance that at least one of k samples is right (Codex, arXiv:2107.03374, equation 1).

    The interval is Wilson's for the number of independent yes-or-no trials that would give the standard error of the
    mean over tasks. It stays inside 0 and 1, and has a width also where all tasks agree: at most ``tasks * k`` trials
    count. Where k is the number of samples, a task is solved or not, and it is that of a proportion but for one trial.

    Args:
        correct: int ``[tasks]``, right samples of each task.
        samples: int ``[tasks]``, samples of each task; those with fewer than k are left out, see ``ShareEstimate``.
        k: at least 1.

    Raises:
        ValueError: no task has k samples, or a task has more right samples than samples.
    """
    return _over_tasks(correct, samples, k, lambda right, drawn: 1 - math.comb(drawn - right, k) / math.comb(drawn, k))


def pass_hat_k(correct: np.ndarray, samples: np.ndarray, k: int) -> ShareEstimate:
    """pass^k, the chance that k samples are all right (tau-bench, arXiv:2406.12045); else as ``pass_at_k``."""
    return _over_tasks(correct, samples, k, lambda right, drawn: math.comb(right, k) / math.comb(drawn, k))


def summarize_samples(correct: np.ndarray, samples: np.ndarray, k: int) -> dict[str, ShareEstimate]:
    """Avg@k, pass@k and pass^k by their names, such as ``pass@8``; arguments and errors as of ``pass_at_k``."""
    return {
        f"avg@{k}": average_at_k(correct, samples, k),
        f"pass@{k}": pass_at_k(correct, samples, k),
        f"pass^{k}": pass_hat_k(correct, samples, k),
    }


def _over_tasks(
    correct: np.ndarray, samples: np.ndarray, k: int, of_task: Callable[[int, int], float]
) -> ShareEstimate:
    pairs = [(int(right), int(drawn)) for right, drawn in zip(correct, samples, strict=True)]
    if any(not 0 <= right <= drawn for right, drawn in pairs):
        raise ValueError("a task has more right samples than samples, or fewer than none")
    values_T = np.array([of_task(right, drawn) for right, drawn in pairs if drawn >= k])
    if k < 1 or not len(values_T):
        raise ValueError(f"no task has {k} samples")
    tasks, mean = len(values_T), float(values_T.mean())
    variance = float(values_T.var(ddof=1)) / tasks if tasks > 1 else 0.0
    alike = mean * (1 - mean) / variance if variance else math.inf
    trials = tasks if mean in (0.0, 1.0) else min(alike, tasks * k)
    return _wilson(mean, trials, tasks)


def _wilson(share: float, trials: float, tasks: int) -> ShareEstimate:
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    center = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2) / (1 + z**2 / trials)
    low, high = max(0.0, center - half), min(1.0, center + half)
    return ShareEstimate(share, min(low, share), max(high, share), tasks)  # at 0 and 1 the ends differ by rounding
