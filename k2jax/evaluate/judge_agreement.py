"""How far a judge may be believed: its verdicts beside exact ones on answers that have both.

Right is what the exact verdict says: precision is the share of right answers among those that the judge calls right,
recall the share of right answers that it calls so, and kappa the agreement beyond chance (Cohen 1960).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
import warnings

import numpy as np

from k2jax.evaluate.statistics import CONFIDENCE, MeanEstimate

NAMES = ("agreement", "precision", "recall", "kappa")


def judge_agreement(
    judged: Sequence[bool], exact: Sequence[bool], tasks: Sequence[Hashable], *, resamples: int = 2000, seed: int = 0
) -> dict[str, MeanEstimate]:
    """Agreement, precision, recall and kappa, with errors and intervals of percentiles by drawing tasks again.

    What has no meaning is nan: precision where the judge calls nothing right, recall where nothing is, kappa where both
    say the same of everything; draws of tasks in which it has none are left out of its error and interval.

    Args:
        judged: whether the judge calls each answer right.
        exact: whether it is.
        tasks: the task of each; answers to one task are alike.
        resamples: number of drawn sets of tasks.
        seed: of the draws.

    Raises:
        ValueError: there is no answer.
    """
    if not judged:
        raise ValueError("no answer has both verdicts")
    places = {task: place for place, task in enumerate(dict.fromkeys(tasks))}
    counts_T4 = np.zeros((len(places), 4))
    for said, right, task in zip(judged, exact, tasks, strict=True):
        counts_T4[places[task], 2 * (not said) + (not right)] += 1
    values = _metrics(counts_T4.sum(0))
    rng = np.random.default_rng(seed)
    drawn_RM = np.array(
        [_metrics(counts_T4[rng.integers(len(places), size=len(places))].sum(0)) for _ in range(resamples)]
    )
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of metrics that have no meaning in any draw
        errors = np.nanstd(drawn_RM, axis=0, ddof=1)
        lows, highs = np.nanquantile(drawn_RM, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    for name, *each in zip(NAMES, values, errors, lows, highs, strict=True):
        found[name] = MeanEstimate(*map(float, each), len(places), len(judged))
    return found


def _metrics(counts: np.ndarray) -> list[float]:
    """The metrics of counts: both say right, only the judge, only the exact verdict, neither."""
    both, judge_only, exact_only, neither = map(float, counts)
    total = both + judge_only + exact_only + neither
    agreement = (both + neither) / total
    by_chance = ((both + judge_only) * (both + exact_only) + (exact_only + neither) * (judge_only + neither)) / total**2
    return [
        agreement,
        _share(both, both + judge_only),
        _share(both, both + exact_only),
        _share(agreement - by_chance, 1 - by_chance),
    ]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
