"""From metrics records to arrays: a key may be missing from any record, and any number may be null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Records = Sequence[Mapping[str, Any]]


def series(records: Records, key: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Steps [N] and values [N, ...] of the records that have ``key``, null as NaN; None when nothing is finite.

    Arrays whose shape differs from the last one's (an earlier configuration of the same workdir) are left out.
    """
    found = []
    for record in records:
        if record.get(key) is None and key not in record:
            continue
        try:
            found.append((record["step"], np.asarray(record[key], dtype=np.float64)))
        except (TypeError, ValueError):  # ragged lists, text: not something to draw
            continue
    found = [(step, value) for step, value in found if value.shape == found[-1][1].shape]
    if not found or not any(np.isfinite(value).any() for _, value in found):
        return None
    return np.array([step for step, _ in found], dtype=np.float64), np.stack([value for _, value in found])


def scalars(records: Records, key: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Like series, for plain numbers only."""
    return series([record for record in records if not isinstance(record.get(key, []), list)], key)


def arrays(records: Records, key: str, dimensions: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Like series, for lists nested ``dimensions`` deep and nowhere empty."""
    found = series([record for record in records if isinstance(record.get(key), list)], key)
    return found if found is not None and found[1].ndim == 1 + dimensions else None


def smooth(values_N: np.ndarray) -> np.ndarray:
    """Running median over a fortieth of the values: one spike, or a step that compiled, leaves no mark on it.

    NaN is skipped, and the window shrinks to a quarter towards both ends, where a steep curve would bend it. The
    values should be thinned before: the work grows with their square.
    """
    half = len(values_N) // 80
    index_N = np.arange(len(values_N))
    room_N = np.minimum(index_N, index_N[::-1])
    half_N = np.clip(room_N, -(-half // 4), half) if half else room_N * 0
    padded = np.pad(np.where(np.isfinite(values_N), values_N, np.nan), half, constant_values=np.nan)
    windows_NW = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    inside_NW = np.abs(np.arange(-half, half + 1)) <= half_N[:, None]
    sorted_NW = np.sort(np.where(inside_NW, windows_NW, np.nan), axis=1)  # NaN goes last
    count_N = np.isfinite(sorted_NW).sum(axis=1)
    middle_N2 = np.stack([np.maximum(count_N - 1, 0) // 2, count_N // 2], axis=1)
    middle_N2 = np.minimum(middle_N2, 2 * half)  # only where all is NaN, and NaN is then the answer
    return np.take_along_axis(sorted_NW, middle_N2, axis=1).mean(axis=1)


def thin(steps_N: np.ndarray, values_N: np.ndarray, limit: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """At most about ``limit`` evenly spaced points, the last one included: a picture has no room for more."""
    stride = -(-len(steps_N) // limit)
    chosen = np.arange(len(steps_N) - 1, -1, -stride)[::-1]
    return steps_N[chosen], values_N[chosen]
