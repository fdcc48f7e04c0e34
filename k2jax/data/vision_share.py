"""The share of tokens that sources with images have, constant or by phases of the run, as shares of rows.

Rows of different sources hold different numbers of tokens: shares of tokens become shares of rows by each source's mean
over all its rows. The share of a phase is therefore exact over whole passes of the sources, and up to the spread of
their rows over parts of a pass.

Phases begin at shares of the run's tokens, not of its steps: a step with more rows of images may hold fewer tokens.
Runs of equal length whose phases have the same share of images on average then see equally many tokens of images, and
of text, whenever they see them (Kimi K2.5, table 1).
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import itertools
import math

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
        self, names: Sequence[str], weights: Sequence[float], tokens: Sequence[float], *, batch_size: int, steps: int
    ) -> Weighting:
        """Shares of rows, which change between steps.

        Sources with images share what their kind has, and sources of text what theirs has, by their weights. A source
        that has reached its limit leaves its share to those of its kind; the mixture ends where there are none.

        Args:
            names: of all sources.
            weights: of each, by rows.
            tokens: of each, the mean of a row.
            batch_size: rows of a step.
            steps: of the run.
        """
        visual = [name in self.sources for name in names]
        sizes = [weight * mean for weight, mean in zip(weights, tokens, strict=True)]

        def rows(share: float, active: Sequence[bool]) -> list[float] | None:
            """Of every source, for each token of the run; None where a kind has a share and no source."""
            found = [0.0] * len(names)
            for kind, part in ((True, share), (False, 1 - share)):
                own = [i for i, left in enumerate(active) if left and visual[i] == kind]
                if part and not own:
                    return None
                for i in own:
                    found[i] = part * weights[i] / sum(sizes[j] for j in own)
            return found

        def shares(period: int, active: Sequence[bool]) -> Sequence[int] | None:
            found = rows(self.shares[period], active)
            return found and integer_shares(found)

        lengths = [stop - start for start, stop in itertools.pairwise((*self.starts, 1.0))]
        needed = [rows(share, [True] * len(names)) or [0.0] for share in self.shares]
        ends = [0.0, *itertools.accumulate(length * sum(of) for length, of in zip(lengths, needed, strict=True))]
        starts = (math.floor(steps * end / ends[-1] + 0.5) if ends[-1] else 0 for end in ends[:-1])
        return Weighting(tuple(start * batch_size for start in starts), shares)


def vision_share(config: DataConfig) -> VisionShare | None:
    """The shares that a configuration asks for; None where weights alone decide."""
    if not config.images.share:
        return None
    visual = frozenset(name for name, source in config.sources.items() if source.kind in IMAGE_SOURCES)
    return VisionShare(visual, config.images.share, config.images.share_from)
