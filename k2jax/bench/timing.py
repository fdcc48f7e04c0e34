"""Timing of benchmarks: candidates run in interleaved rounds, and each one's median time counts."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import statistics
import time
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Row:
    """One comparison; a ratio above 1 always means that ours is better.

    Attributes:
        name: name of the benchmark, with its sizes.
        ours: median of our implementation.
        baseline: median of the baseline.
        ratio: baseline / ours for times, ours / baseline for rates.
        unit: unit of both medians.
        device: name of the device.
        baseline_name: name of the baseline.
    """

    name: str
    ours: float
    baseline: float
    _: dataclasses.KW_ONLY
    ratio: float
    unit: str
    device: str
    baseline_name: str


def interleaved(candidates: dict[str, Callable[[], Any]], rounds: int, warmup: int = 2) -> dict[str, float]:
    """Median seconds of each candidate; every round runs all of them once, beginning with another one.

    On a shared machine, interference then affects all candidates alike, and so does what one leaves to the next:
    caches, or files that the system has still to write.

    Args:
        candidates: functions without arguments; the time includes the wait for JAX results.
        rounds: timed runs of each candidate.
        warmup: untimed runs of each candidate, compilation included.
    """
    for _ in range(warmup):
        for run in candidates.values():
            jax.block_until_ready(run())
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds):
        names = list(candidates)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            run = candidates[name]
            start = time.perf_counter()
            jax.block_until_ready(run())
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def time_row(name: str, ours: float, baseline: float, baseline_name: str, device: str) -> Row:
    """Row of two times, given in seconds and reported in milliseconds."""
    return Row(
        name, ours * 1e3, baseline * 1e3, ratio=baseline / ours, unit="ms", device=device, baseline_name=baseline_name
    )


def rate_row(name: str, ours: float, baseline: float, unit: str, baseline_name: str, device: str) -> Row:
    """Row of two rates."""
    return Row(name, ours, baseline, ratio=ours / baseline, unit=unit, device=device, baseline_name=baseline_name)
