"""The share of tokens that sources with images have, constant or by phases of the run, as shares of rows.

Rows of different sources hold different numbers of tokens: shares of tokens become shares of rows by each source's mean
over all its rows. The share of a phase is therefore exact over whole passes of the sources, and up to the spread of
their rows over parts of a pass. Text that fills rows with images counts as text: what it takes is left out of rows of
text alone.

Phases begin at shares of the run's tokens, not of its steps: a step with more rows of images may hold fewer tokens.
Runs of equal length whose phases have the same share of images on average then see equally many tokens of images, and
of text, whenever they see them (Kimi K2.5, table 1).
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import itertools
import math
from typing import NamedTuple

from k2jax.config.schema import IMAGE_SOURCES, DataConfig
from k2jax.mixture_plan import Weighting, integer_shares


@dataclasses.dataclass(frozen=True)
class VisionShare:
    """Shares by phase.

    Attributes:
        sources: names of the sources with images.
        shares: of all tokens of each phase, those of samples with images: their features and their text.
        starts: where each phase begins, as a share of the run's tokens, ascending from 0.
    """

    sources: frozenset[str]
    shares: tuple[float, ...]
    starts: tuple[float, ...]

    def weighting(
        self,
        names: Sequence[str],
        weights: Sequence[float],
        tokens: Sequence[float],
        *,
        batch_size: int,
        steps: int,
        free: Sequence[float] = (),
    ) -> Weighting:
        """Shares of rows, which change between steps.

        Sources with images share what their kind has, and sources of text what theirs has, by their weights. A source
        that has reached its limit leaves its share to those of its kind; the mixture ends where there are none.

        Args:
            names: of all sources.
            weights: of each, by rows.
            tokens: of each, the mean of a row, without what fills it.
            batch_size: rows of a step.
            steps: of the run.
            free: of each, the mean tokens by which text fills a row; nothing fills any by default.
        """
        mixture = _Mixture([name in self.sources for name in names], weights, tokens, free or [0.0] * len(names))

        def shares(period: int, active: Sequence[bool]) -> Sequence[int] | None:
            found = mixture.rows(self.shares[period], active)
            return found and integer_shares(found)

        return Weighting(tuple(start * batch_size for start in self._first_steps(mixture, steps)), shares)

    def filled(
        self, names: Sequence[str], weights: Sequence[float], tokens: Sequence[float], free: Sequence[float]
    ) -> list[float]:
        """The share of rows with images that text fills, by phase; arguments as of ``weighting``.

        It is below 1 where there is less text in a phase than its rows with images would take.
        """
        mixture = _Mixture([name in self.sources for name in names], weights, tokens, free)
        return [mixture.filled(share, [True] * len(names)) for share in self.shares]

    def _first_steps(self, mixture: _Mixture, steps: int) -> list[int]:
        lengths = [stop - start for start, stop in itertools.pairwise((*self.starts, 1.0))]
        every = [True] * len(mixture.weights)
        needed = [mixture.rows(share, every) or [0.0] for share in self.shares]
        ends = [0.0, *itertools.accumulate(length * sum(of) for length, of in zip(lengths, needed, strict=True))]
        return [math.floor(steps * end / ends[-1] + 0.5) if ends[-1] else 0 for end in ends[:-1]]


class _Mixture(NamedTuple):
    """Sources, of which some have images; weights and mean tokens as of ``VisionShare.weighting``."""

    visual: Sequence[bool]
    weights: Sequence[float]
    tokens: Sequence[float]
    free: Sequence[float]

    def filled(self, share: float, active: Sequence[bool]) -> float:
        """Which part of the rows with images text fills where a phase has this share of images."""
        rows = self._of_kind(True, share, active) or []
        taken = sum(count * free for count, free in zip(rows, self.free, strict=False))
        return min(1.0, (1 - share) / taken) if taken else 1.0

    def rows(self, share: float, active: Sequence[bool]) -> list[float] | None:
        """Rows of every source for each token of the run; None where a kind has a share and no source."""
        seen = self._of_kind(True, share, active)
        if seen is None:
            return None
        taken = sum(count * free for count, free in zip(seen, self.free, strict=True))
        left = max(0.0, 1 - share - taken)
        read = self._of_kind(False, left if taken else 1 - share, active)
        return None if read is None else [a + b for a, b in zip(seen, read, strict=True)]

    def _of_kind(self, visual: bool, part: float, active: Sequence[bool]) -> list[float] | None:
        """Rows of the sources of a kind for a part of every token; None where the kind has no source."""
        own = [i for i, left in enumerate(active) if left and self.visual[i] == visual]
        if part and not own:
            return None
        size = sum(self.weights[i] * self.tokens[i] for i in own)
        return [part * self.weights[i] / size if i in own else 0.0 for i in range(len(active))]


def vision_share(config: DataConfig) -> VisionShare | None:
    """The shares that a configuration asks for; None where weights alone decide."""
    if not config.images.share:
        return None
    visual = frozenset(name for name, source in config.sources.items() if source.kind in IMAGE_SOURCES)
    return VisionShare(visual, config.images.share, config.images.share_from)
