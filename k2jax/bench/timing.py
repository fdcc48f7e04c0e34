"""Timing of benchmarks: candidates run in interleaved rounds, and each one's median time counts."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import statistics
import time
from typing import Any

import jax

from k2jax.runtime import device_name


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
    return {name: wall for name, (wall, _) in interleaved_spent(candidates, rounds, warmup).items()}


def interleaved_spent(
    candidates: dict[str, Callable[[], Any]], rounds: int, warmup: int = 2
) -> dict[str, tuple[float, float]]:
    """As ``interleaved``, with the median processor seconds of all threads of this process beside those of the clock.

    They say what a candidate costs also where others use the processors, and nothing of an accelerator.
    """
    for _ in range(warmup):
        for run in candidates.values():
            jax.block_until_ready(run())
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    for number in range(rounds):
        names = list(candidates)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            run = candidates[name]
            start, processor = time.perf_counter(), time.process_time()
            jax.block_until_ready(run())
            spent[name].append((time.perf_counter() - start, time.process_time() - processor))
    return {name: tuple(map(statistics.median, zip(*times, strict=True))) for name, times in spent.items()}


def time_row(name: str, ours: float, baseline: float, baseline_name: str) -> Row:
    """Row of two times on the default device, given in seconds and reported in milliseconds."""
    return cost_row(name, ours * 1e3, baseline * 1e3, "ms", baseline_name)


def time_rows(name: str, candidates: dict[str, Callable[[], Any]], rounds: int, warmup: int = 2) -> list[Row]:
    """Rows of the times of interleaved runs: the first candidate is ours, the others are baselines by their names."""
    ours, *others = (seconds := interleaved(candidates, rounds, warmup))
    return [time_row(name, seconds[ours], seconds[other], other) for other in others]


def cost_row(
    name: str, ours: float, baseline: float, unit: str, baseline_name: str, *, device: str | None = None
) -> Row:
    """Row of two quantities of which less is better; ``device`` says where they are from, or how they were counted."""
    return Row(
        name,
        ours,
        baseline,
        ratio=baseline / ours,
        unit=unit,
        device=device or device_name(),
        baseline_name=baseline_name,
    )


def rate_row(
    name: str, ours: float, baseline: float, unit: str, baseline_name: str, *, device: str | None = None
) -> Row:
    """Row of two rates, of which more is better; ``device`` as of ``cost_row``."""
    return Row(
        name,
        ours,
        baseline,
        ratio=ours / baseline,
        unit=unit,
        device=device or device_name(),
        baseline_name=baseline_name,
    )


def fastest(candidates: dict[str, Callable[[], Any]], rounds: int = 1) -> str:
    """The name of the candidate with the least median time of a few interleaved runs."""
    seconds = interleaved(candidates, rounds, warmup=1)
    return min(seconds, key=seconds.__getitem__)


class Clock:
    """Seconds since the last lap."""

    def __init__(self):
        self._began = time.perf_counter()

    def lap(self) -> float:
        """Begins the next lap; returns the seconds of the one before."""
        now = time.perf_counter()
        seconds, self._began = now - self._began, now
        return seconds
