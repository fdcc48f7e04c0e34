"""How everything is timed: the candidates take turns, and what counts is the median of each."""

from __future__ import annotations

from collections.abc import Callable
import statistics
import time
from typing import Any, NamedTuple

import jax


class Row(NamedTuple):
    """One comparison. ``ratio`` above 1 always means that ours is better.

    Attributes:
        name: what is compared, with its sizes.
        ours, baseline: medians.
        ratio: baseline / ours for times, ours / baseline for rates.
        unit: of ours and baseline.
        device: where it ran.
        baseline_name: what ours is compared with.
    """

    name: str
    ours: float
    baseline: float
    ratio: float
    unit: str
    device: str
    baseline_name: str


def interleaved(candidates: dict[str, Callable[[], Any]], rounds: int, warmup: int = 2) -> dict[str, float]:
    """Median seconds of each candidate; every round runs all of them once, in order.

    Machines are shared and noisy: a slow spell then hits every candidate alike.

    Args:
        candidates: functions without arguments; JAX results are waited for.
        rounds: how often each is timed.
        warmup: how often each runs before, compilation included.
    """
    for _ in range(warmup):
        for run in candidates.values():
            jax.block_until_ready(run())
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def time_row(name: str, ours: float, baseline: float, baseline_name: str, device: str) -> Row:
    """A row of two times, given in seconds and shown in milliseconds."""
    return Row(name, ours * 1e3, baseline * 1e3, baseline / ours, "ms", device, baseline_name)


def rate_row(name: str, ours: float, baseline: float, unit: str, baseline_name: str, device: str) -> Row:
    """A row of two rates."""
    return Row(name, ours, baseline, ours / baseline, unit, device, baseline_name)
