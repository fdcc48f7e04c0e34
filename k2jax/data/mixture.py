"""The source of each row of the mixture, as a closed form of the row's index, without state.

The mixture has phases. Within a phase the active sources are interleaved as evenly as integers allow. A phase ends when
a source reaches its limit of rows; its share then goes to the other sources.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
import dataclasses
import sys

import grain

SHARE_SCALE = 2**24  # Weights become integers, so that counts are exact at any row.


def interleaved(row: int, shares: Sequence[int]) -> list[int]:
    """Counts how many of the first ``row`` rows come from each source.

    The counts sum to ``row``, each differs from ``row * share / sum(shares)`` by less than the number of sources, and
    from one row to the next exactly one of them grows.

    Args:
        row: number of rows.
        shares: non-negative integers, not all 0; a source with share 0 provides no rows.
    """
    counts, rest, share_left = [], row, sum(shares)
    for share in shares:
        after = rest * (share_left - share) // share_left if share_left else 0
        counts.append(rest - after)
        rest, share_left = after, share_left - share
    return counts


@dataclasses.dataclass(frozen=True)
class MixturePhase:
    """A range of rows with the same active sources.

    Attributes:
        start: first row of the phase.
        shares: share of each source; 0 for a source that has reached its limit.
        drawn: rows of each source before ``start``.
    """

    start: int
    shares: tuple[int, ...]
    drawn: tuple[int, ...]


class MixturePlan(grain.transforms.DatasetSelectionMap):
    """Maps a row of the mixture to ``(source, number of earlier rows of that source)``.

    Attributes:
        phases: all phases, in order.
        rows: number of rows until all sources have reached their limits; None if the mixture never ends.
    """

    def __init__(self, weights: Sequence[float], limits: Sequence[int | None]):
        """Plans all phases.

        Args:
            weights: positive shares of the mixture.
            limits: most rows of each source, at least 1; None is no limit.
        """
        shares = tuple(max(1, round(weight / sum(weights) * SHARE_SCALE)) for weight in weights)
        self.phases = [MixturePhase(0, shares, (0,) * len(shares))]
        while (end := _phase_end(self.phases[-1], limits)) is not None:
            drawn = _drawn(self.phases[-1], end)
            pairs = zip(self.phases[-1].shares, drawn, limits, strict=True)
            shares = tuple(0 if count == limit else share for share, count, limit in pairs)
            if not any(shares):
                break
            self.phases.append(MixturePhase(end, shares, tuple(drawn)))
        self._starts = [phase.start for phase in self.phases]
        self.rows = end

    def __len__(self) -> int:
        return sys.maxsize if self.rows is None else self.rows

    def __getitem__(self, row: int) -> tuple[int, int]:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        before, after = self.drawn(row), self.drawn(row + 1)
        source = next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
        return source, before[source]

    def drawn(self, row: int) -> list[int]:
        """Counts how many of the first ``row`` rows come from each source; ``row`` is at most ``len(self)``."""
        return _drawn(self.phases[bisect.bisect_right(self._starts, row) - 1], row)


def _drawn(phase: MixturePhase, row: int) -> list[int]:
    return [a + b for a, b in zip(phase.drawn, interleaved(row - phase.start, phase.shares), strict=True)]


def _phase_end(phase: MixturePhase, limits: Sequence[int | None]) -> int | None:
    """First row by which an active source has reached its limit; None if none ever does."""
    ends = []
    for source, (share, limit) in enumerate(zip(phase.shares, limits, strict=True)):
        if share and limit is not None:
            # Counts grow with the row. At this bound the limit is reached even if every earlier source rounds down.
            bound = phase.start + (limit - phase.drawn[source] + len(limits)) * sum(phase.shares) // share + 1
            reached = lambda row, source=source: _drawn(phase, row)[source]  # noqa: E731
            ends.append(bisect.bisect_left(range(bound), limit, lo=phase.start, key=reached))
    return min(ends, default=None)
