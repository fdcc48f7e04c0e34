"""What counts as a duplicate, and the bands that propose pairs for a threshold."""

from __future__ import annotations

import dataclasses
import functools

from k2jax.errors import UserError

PERMUTATIONS = 128
"""Smallest values of a signature: the estimate of a Jaccard similarity J errs by sqrt(J (1 - J) / 128)."""
PROPOSED = 0.98
"""Least probability that bands propose a pair whose similarity is the threshold; of more similar ones it is higher."""
MOST_WORDS = 1_000_000
"""Words of a document that is compared by its shingles; longer ones are compared as a whole alone."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DuplicateSettings:
    """What is a near duplicate of a document that is kept.

    Attributes:
        threshold: least Jaccard similarity of the sets of 5-word shingles.
        contained: least share of the smaller document's 3-word runs that the larger one holds; 0 does without.
        numbers: least Jaccard similarity n of the sets of words with digits, for a contained document 2 n / (1 + n) of
            the smaller set: documents of one template differ in them. 0 does without.
    """

    threshold: float = 0.8
    contained: float = 0.95
    numbers: float = 0.5

    def __post_init__(self):
        if not 0.5 <= self.threshold <= 1:
            raise UserError(f"the threshold of near duplicates is {self.threshold}; it may be 0.5 to 1")
        for name in ("contained", "numbers"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} of near duplicates is {getattr(self, name)}; it is a share, 0 to 1")

    @property
    def rows(self) -> int:
        """Values of a signature in a band."""
        return rows_of_a_band(self.threshold)

    @property
    def bands(self) -> int:
        """Bands of a signature: documents that are equal in one of them are proposed."""
        return PERMUTATIONS // self.rows


@functools.cache
def rows_of_a_band(threshold: float) -> int:
    """The most rows r for which 1 - (1 - t^r)^b is at least ``PROPOSED`` at the threshold t, with b = 128 // r bands.

    For 0.8 that is r = 7 and b = 18. More rows propose fewer pairs that are not similar, and leave out more that are.
    """
    good = [rows for rows in range(1, 33) if proposed_share(threshold, rows) >= PROPOSED]
    return good[-1]


def proposed_share(similarity: float, rows: int) -> float:
    """Probability that two documents of a Jaccard similarity are equal in a band of so many rows."""
    return 1 - (1 - similarity**rows) ** (PERMUTATIONS // rows)
