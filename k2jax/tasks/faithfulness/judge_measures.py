"""How good a judge of probabilities is: area under the ROC curve, calibration error, and a picture of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from k2jax.report.style import ALERT, MUTED, PALETTE, new_figure, save_figure, style_axes

BINS = 10


def area_under_curve(scores: np.ndarray, labels: np.ndarray) -> float:
    """The area under the ROC curve: how often a right claim has the higher score, a tie counting half.

    Args:
        scores: float ``[claims]``.
        labels: bool ``[claims]``, of both values.
    """
    order = np.argsort(scores, kind="stable")
    sorted_scores = scores[order]
    first = np.searchsorted(sorted_scores, scores, side="left")
    last = np.searchsorted(sorted_scores, scores, side="right")
    ranks = (first + last + 1) / 2
    right = labels.sum()
    wrong = len(labels) - right
    return float((ranks[labels].sum() - right * (right + 1) / 2) / (right * wrong))


class CalibrationBin(NamedTuple):
    """Claims whose probabilities lie close together.

    Attributes:
        count: of them.
        probability: mean of what the judge says.
        share: of them that are supported.
    """

    count: int
    probability: float
    share: float


def calibration_bins(probabilities: np.ndarray, labels: np.ndarray, bins: int = BINS) -> list[CalibrationBin]:
    """Bins of equal width that have claims; arguments as of ``area_under_curve``."""
    places = np.minimum((probabilities * bins).astype(int), bins - 1)
    return [
        CalibrationBin(int(own.sum()), float(probabilities[own].mean()), float(labels[own].mean()))
        for number in range(bins)
        if (own := places == number).any()
    ]


def expected_calibration_error(bins: list[CalibrationBin]) -> float:
    """Mean distance of probability and share over the bins, by their claims."""
    total = sum(one.count for one in bins)
    return sum(one.count * abs(one.probability - one.share) for one in bins) / total


def calibration_picture(bins: list[CalibrationBin], path: Path, title: str) -> None:
    """Draws shares over probabilities; a calibrated judge's points lie on the diagonal."""
    figure, axes = new_figure(1, 2, height=3.6)
    left, right = axes[0]
    left.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--")
    left.plot([one.probability for one in bins], [one.share for one in bins], "o-", color=PALETTE[0])
    style_axes(left, title=title, x="probability that the judge gives", y="share that is supported")
    right.bar([one.probability for one in bins], [one.count for one in bins], width=0.05, color=ALERT)
    style_axes(right, title="Claims by probability", x="probability that the judge gives", y="claims")
    save_figure(figure, path)
