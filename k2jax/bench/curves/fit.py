"""Exponents of measured curves: one over all points, and two where a bend explains the points better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEAST_CHANGE = 0.2
"""Difference of two exponents that is called a bend."""
LEAST_SHARE = 0.75
"""Share of one line's squared errors that two lines have to explain."""


class Bend(NamedTuple):
    """Where the exponent of a curve changes.

    Attributes:
        at: size at which it does, one of the measured ones.
        before: exponent below it.
        after: exponent above it.
    """

    at: float
    before: float
    after: float


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The least-squares slope of log cost over log size.

    Args:
        sizes: positive, at least two different ones.
        costs: positive, one for each size.
    """
    x, y = np.log(sizes), np.log(costs)
    x = x - x.mean()
    return float(x @ y / (x @ x))


def bend(sizes: Sequence[float], costs: Sequence[float]) -> Bend | None:
    """The bend of the two joined lines that fit best in logarithms; None where one line is about as good.

    Each of the lines has at least two of the points besides the one that they share, so that no single point makes a
    bend.

    Args:
        sizes: positive and growing.
        costs: positive, one for each size.
    """
    x, y = np.log(sizes), np.log(costs)
    straight = _squared_error(np.stack([np.ones_like(x), x], 1), y)[1]
    best = None
    for place in range(2, len(x) - 2):
        columns = np.stack([np.ones_like(x), x, np.maximum(x - x[place], 0.0)], 1)
        (_, before, change), error = _squared_error(columns, y)
        if best is None or error < best[0]:
            best = error, Bend(float(sizes[place]), float(before), float(before + change))
    if best is None or best[0] > (1.0 - LEAST_SHARE) * straight or abs(best[1].after - best[1].before) < LEAST_CHANGE:
        return None
    return best[1]


def _squared_error(columns: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
    coefficients = np.linalg.lstsq(columns, y, rcond=None)[0]
    return coefficients, float(np.square(columns @ coefficients - y).sum())
