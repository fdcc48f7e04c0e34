"""A plan of a mixture for many rows at once: what ``MixturePlan`` says of one row, in NumPy."""

from __future__ import annotations

import numpy as np

from k2jax.mixture_plan import MixturePlan


def drawn_before(plan: MixturePlan, rows: np.ndarray) -> np.ndarray:
    """Counts how many of the first ``rows`` rows come from each source, int ``[n, sources]``.

    Args:
        plan: of the mixture.
        rows: int64 ``[n]``, ascending, each at most ``len(plan)``.
    """
    starts = np.array([phase.start for phase in plan.phases])
    counts = []
    for number, own in _by_phase(starts, rows):
        phase = plan.phases[number]
        left = sum(phase.shares)
        # Python's integers where 64 bits would overflow, at more than 2^38 rows.
        rest = (own - phase.start).astype(np.int64 if int(own[-1]) * left < 2**63 else object)
        columns = []
        for share, before in zip(phase.shares, phase.drawn, strict=True):
            after = rest * (left - share) // left if left else rest * 0
            columns.append(rest - after + before)
            rest, left = after, left - share
        counts.append(np.stack(columns, 1))
    return np.concatenate(counts).astype(np.int64)


def drawn_rows(plan: MixturePlan, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """The source of every row of a range, and the number of earlier rows of that source, int64 ``[stop - start]``.

    Args:
        plan: of the mixture.
        start: first row.
        stop: one past the last one, at most ``len(plan)``.

    Raises:
        IndexError: the range is not of the plan.
    """
    if not 0 <= start < stop <= len(plan):
        raise IndexError(f"rows {start} to {stop} of {len(plan)}")
    counts = drawn_before(plan, np.arange(start, stop + 1))
    sources = np.diff(counts, axis=0).argmax(1)
    return sources, np.take_along_axis(counts[:-1], sources[:, None], 1)[:, 0]


def _by_phase(starts: np.ndarray, rows: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Phases, and those of ascending rows that are in each; none is empty."""
    phases = np.searchsorted(starts, rows, side="right") - 1
    borders = np.flatnonzero(np.diff(phases)) + 1
    return [(int(phases[at]), own) for at, own in zip([0, *borders], np.split(rows, borders), strict=True)]
