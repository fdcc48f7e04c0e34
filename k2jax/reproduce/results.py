"""Results of a study's runs, and what a summary computes from them."""

from __future__ import annotations

from collections.abc import Mapping
import itertools
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from k2jax.config import Config

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class RunResult(NamedTuple):
    """Result of one run of a study.

    Attributes:
        config: configuration of the run.
        records: its metrics, one dict for each step.
        exit_code: exit code of its training; 3 (stopped on a non-finite value) is a valid result.
        evaluation: what the study's own ``evaluate`` found of its final weights; empty where it has none.
    """

    config: Config
    records: list[dict[str, Any]]
    exit_code: int
    evaluation: Mapping[str, Any] = MappingProxyType({})


class Summary(NamedTuple):
    """Summary of a study.

    Attributes:
        markdown: table and explanation, in Markdown.
        figure: plot of the results.
    """

    markdown: str
    figure: Figure


def curve(result: RunResult, key: str) -> tuple[list[int], list[Any]]:
    """Steps and values of a metric, for the steps that recorded it."""
    points = [(record["step"], record[key]) for record in result.records if record.get(key) is not None]
    return [step for step, _ in points], [value for _, value in points]


def final(result: RunResult, key: str) -> float:
    """Last value of a metric; infinity for a run that stopped early or never recorded it."""
    values = curve(result, key)[1]
    return values[-1] if values and result.exit_code == 0 else float("inf")


def relative_spread(values: list[float], window: int) -> float:
    """Standard deviation over mean of a metric in windows of about ``window`` values, averaged: a trend is no spread.

    Args:
        values: of the steps that recorded it, at least one, positive.
        window: values in a window.
    """
    windows = np.array_split(np.array(values, float), max(1, len(values) // window))
    return float(np.mean([part.std() / part.mean() for part in windows]))


def seconds_at(result: RunResult, step: int) -> float:
    """Training time up to ``step`` at the median time of a step, which excludes compilation and noise [s]."""
    times = [record["seconds"] for record in result.records]
    step_times = sorted(b - a for a, b in itertools.pairwise(times))
    return step * step_times[len(step_times) // 2] if step_times else float("nan")


def spread(values: list[float | None], digits: int = 3) -> str:
    """``mean (lowest to highest)`` of the values of a few seeds that are known; ``none`` without any."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return "none"
    return f"{sum(numbers) / len(numbers):.{digits}f} ({min(numbers):.{digits}f} to {max(numbers):.{digits}f})"


def points(shares: list[float | None], starts: list[float | None]) -> str:
    """The differences of shares, seed by seed where both are known, in points: ``mean (lowest to highest)`` with signs.

    A point is a hundredth. Without a known difference it is ``none``.
    """
    pairs = [pair for pair in zip(shares, starts, strict=True) if None not in pair]
    if not pairs:
        return "none"
    gains = [100 * (share - start) for share, start in pairs]
    return f"{sum(gains) / len(gains):+.1f} ({min(gains):+.1f} to {max(gains):+.1f})"
