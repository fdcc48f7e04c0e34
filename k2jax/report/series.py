"""Arrays from metrics records, in which any key may be missing and any number may be null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
import warnings

import numpy as np

Records = Sequence[Mapping[str, Any]]

MOST_LISTS = 1000
"""Records whose lists a picture can show: its memory does not grow with the experts and heads of a long run."""


def series(records: Records, key: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns steps [N] and values [N, ...] of the records that have ``key``, with NaN for null.

    Values whose shape differs from the last value's (of an earlier configuration in the same workdir) are left out.

    Returns:
        Steps and values; None if no value is finite.
    """
    pairs = []
    for record in records:
        if record.get(key) is None and key not in record:
            continue
        try:
            pairs.append((record["step"], np.asarray(record[key], dtype=np.float64)))
        except (TypeError, ValueError):  # ragged lists and text cannot be drawn
            continue
    pairs = [(step, value) for step, value in pairs if value.shape == pairs[-1][1].shape]
    if not any(np.isfinite(value).any() for _, value in pairs):
        return None
    return np.array([step for step, _ in pairs], dtype=np.float64), np.stack([value for _, value in pairs])


def scalars(records: Records, key: str) -> tuple[np.ndarray, np.ndarray] | None:
    """``series`` of plain numbers only."""
    return series([record for record in records if not isinstance(record.get(key, []), list)], key)


def arrays(records: Records, key: str, dimensions: int) -> tuple[np.ndarray, np.ndarray] | None:
    """``series`` of lists with ``dimensions`` levels of nesting, none of them empty."""
    steps_and_values = series([record for record in records if isinstance(record.get(key), list)], key)
    if steps_and_values is None or steps_and_values[1].ndim != 1 + dimensions:
        return None
    return steps_and_values


def smooth(values_N: np.ndarray) -> np.ndarray:
    """Returns the running median over a fortieth of the values, which ignores single spikes.

    NaN is skipped. The window shrinks to a quarter towards both ends, where it would otherwise distort a steep curve.
    Thin the values first, because the work grows with the square of their number.
    """
    half = len(values_N) // 80
    index_N = np.arange(len(values_N))
    room_N = np.minimum(index_N, index_N[::-1])
    half_N = np.clip(room_N, -(-half // 4), half) if half else room_N * 0
    padded = np.pad(np.where(np.isfinite(values_N), values_N, np.nan), half, constant_values=np.nan)
    windows_NW = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    inside_NW = np.abs(np.arange(-half, half + 1)) <= half_N[:, None]
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of windows without any value
        return np.nanmedian(np.where(inside_NW, windows_NW, np.nan), axis=1)


def thin(steps_N: np.ndarray, values_N: np.ndarray, limit: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Returns about ``limit`` evenly spaced points at most, including the last; a plot cannot show more."""
    stride = -(-len(steps_N) // limit)
    chosen = np.arange(len(steps_N) - 1, -1, -stride)[::-1]
    return steps_N[chosen], values_N[chosen]
