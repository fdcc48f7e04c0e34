"""The source of each row of a mixture, of documents or of tasks, as a closed form of the row's index, without state.

The mixture has phases. Within a phase the active sources are interleaved as evenly as integers allow. A phase ends when
a source reaches its limit of rows, whose share then goes to other sources, and where the weights change.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
import dataclasses
import sys

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


def integer_shares(weights: Sequence[float]) -> tuple[int, ...]:
    """Shares of sources as integers; a source whose weight is not 0 has at least 1."""
    total = sum(weights)
    return tuple(max(1, round(weight / total * SHARE_SCALE)) if weight else 0 for weight in weights)


@dataclasses.dataclass(frozen=True)
class Weighting:
    """Shares of sources that change over the rows.

    Attributes:
        starts: first row of each period, ascending from 0.
        shares: ``(period, whether each source has rows left) -> integers``, 0 for a source without; None where no row
            can be drawn as wanted, and the mixture ends.
    """

    starts: tuple[int, ...]
    shares: Callable[[int, Sequence[bool]], Sequence[int] | None]


def constant_weighting(weights: Sequence[float]) -> Weighting:
    """Positive weights that never change; the share of a source without rows goes to all others."""
    shares = integer_shares(weights)

    def masked(period: int, active: Sequence[bool]) -> Sequence[int] | None:
        return [share * left for share, left in zip(shares, active, strict=True)] if any(active) else None

    return Weighting((0,), masked)


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


class MixturePlan:
    """Maps a row of the mixture to ``(source, number of earlier rows of that source)``.

    Attributes:
        phases: all phases, in order.
        rows: number of rows until no more can be drawn; None if the mixture never ends.
    """

    def __init__(self, weights: Sequence[float] | Weighting, limits: Sequence[int | None]):
        """Plans all phases.

        Args:
            weights: positive shares of the mixture, or shares that change.
            limits: most rows of each source, at least 1; None is no limit.
        """
        weighting = weights if isinstance(weights, Weighting) else constant_weighting(weights)
        self.phases: list[MixturePhase] = []
        self.rows: int | None = 0
        drawn = [0] * len(limits)
        while self.rows is not None:
            period = bisect.bisect_right(weighting.starts, self.rows) - 1
            active = [count != limit for count, limit in zip(drawn, limits, strict=True)]
            shares = weighting.shares(period, active)
            if shares is None:
                break
            self.phases.append(MixturePhase(self.rows, tuple(shares), tuple(drawn)))
            ends = [_phase_end(self.phases[-1], limits), *weighting.starts[period + 1 : period + 2]]
            self.rows = min((end for end in ends if end is not None), default=None)
            drawn = drawn if self.rows is None else _drawn(self.phases[-1], self.rows)
        self._starts = [phase.start for phase in self.phases]

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
            # Counts grow with the row, and differ from its share by less than the number of sources: the limit is
            # reached between these two rows, however the earlier sources round.
            left, total = limit - phase.drawn[source], sum(phase.shares)
            first = phase.start + max(0, left - len(limits)) * total // share
            bound = phase.start + (left + len(limits)) * total // share + 1
            reached = lambda row, source=source: _drawn(phase, row)[source]  # noqa: E731
            ends.append(bisect.bisect_left(range(bound), limit, lo=first, key=reached))
    return min(ends, default=None)
