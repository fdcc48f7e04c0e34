"""How often a model solves tasks, from several samples of each, and how sure that is.

pass@k is the chance that at least one of k samples is right, pass^k that all of them are, Avg@k the mean share of right
samples; each is estimated for a task without bias from n >= k samples and averaged over tasks. Tasks are taken as drawn
at random and samples of one task as alike: intervals are over tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math

import numpy as np

from k2jax.evaluate.statistics import MeanEstimate, clustered_mean

Counts = Sequence[int] | np.ndarray


def average_at_k(correct: Counts, samples: Counts, k: int) -> MeanEstimate:
    """Avg@k: the mean over tasks of the share of right samples; arguments and interval as of ``pass_at_k``."""
    return _over_tasks(correct, samples, k, lambda right, drawn: right / drawn)


def pass_at_k(correct: Counts, samples: Counts, k: int) -> MeanEstimate:
    """pass@k, the chance that at least one of k samples is right (Codex, arXiv:2107.03374, equation 1).

    The interval is that of ``clustered_mean`` over the tasks' estimates: between 0 and 1, and with a width also where
    all tasks agree, for no task is worth more than k trials. A greedy answer to each task is one sample, whose accuracy
    is ``average_at_k`` with k of 1.

    Args:
        correct: int ``[tasks]``, right samples of each task.
        samples: int ``[tasks]``, samples of each task; those with fewer than k are left out.
        k: at least 1.

    Raises:
        ValueError: no task has k samples, or a task has more right samples than samples.
    """
    return _over_tasks(correct, samples, k, lambda right, drawn: 1 - math.comb(drawn - right, k) / math.comb(drawn, k))


def pass_hat_k(correct: Counts, samples: Counts, k: int) -> MeanEstimate:
    """pass^k, the chance that k samples are all right (tau-bench, arXiv:2406.12045); else as ``pass_at_k``."""
    return _over_tasks(correct, samples, k, lambda right, drawn: math.comb(right, k) / math.comb(drawn, k))


def summarize_samples(correct: Counts, samples: Counts, k: int) -> dict[str, MeanEstimate]:
    """Avg@k, pass@k and pass^k by their names, such as ``pass@8``; arguments and errors as of ``pass_at_k``."""
    return {
        f"avg@{k}": average_at_k(correct, samples, k),
        f"pass@{k}": pass_at_k(correct, samples, k),
        f"pass^{k}": pass_hat_k(correct, samples, k),
    }


def _over_tasks(correct: Counts, samples: Counts, k: int, of_task: Callable[[int, int], float]) -> MeanEstimate:
    pairs = [(int(right), int(drawn)) for right, drawn in zip(correct, samples, strict=True)]
    if any(not 0 <= right <= drawn for right, drawn in pairs):
        raise ValueError("a task has more right samples than samples, or fewer than none")
    values = [of_task(right, drawn) for right, drawn in pairs if drawn >= k]
    if k < 1 or not values:
        raise ValueError(f"no task has {k} samples")
    return clustered_mean(values, range(len(values)), trials=len(values) * k)
