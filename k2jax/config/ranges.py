"""Ranges of numbers for annotations, ``steps: Annotated[int, AtLeast(1)]``, and the types that several keys have.

All ranges exclude NaN and infinities.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """Numbers from ``low`` on."""

    low: float

    def __contains__(self, value: float) -> bool:
        """Whether the range holds ``value``."""
        return self.low <= value < float("inf")

    def __str__(self) -> str:
        """The range in words that complete "must be"."""
        return f"at least {self.low}"


@dataclasses.dataclass(frozen=True)
class Above:
    """Numbers above ``low``."""

    low: float

    def __contains__(self, value: float) -> bool:
        """Whether the range holds ``value``."""
        return self.low < value < float("inf")

    def __str__(self) -> str:
        """The range in words that complete "must be"."""
        return f"above {self.low}"


@dataclasses.dataclass(frozen=True)
class Between:
    """Numbers from ``low`` to ``high``; an ``open`` end does not belong to the range."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        """Whether the range holds ``value``."""
        above = self.low < value if self.open_low else self.low <= value
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        """The range as an interval, in words that complete "must be"."""
        return f"in {'(' if self.open_low else '['}{self.low}, {self.high}{')' if self.open_high else ']'}"


Range = AtLeast | Above | Between

PositiveInt = Annotated[int, AtLeast(1)]
NonNegativeInt = Annotated[int, AtLeast(0)]
PositiveFloat = Annotated[float, Above(0)]
NonNegativeFloat = Annotated[float, AtLeast(0)]
IntFromTwo = Annotated[int, AtLeast(2)]
RewardWeight = Annotated[float, Between(0, 1e6)]
Percentile = Annotated[float, Between(0, 100)]
FloatFromOne = Annotated[float, AtLeast(1)]
Share = Annotated[float, Between(0, 1)]
PositiveShare = Annotated[float, Between(0, 1, open_low=True)]
ShareBelowOne = Annotated[float, Between(0, 1, open_high=True)]
