"""Things of several sizes into as few bins as a simple rule finds, and these evenly filled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def place(sizes_NK: np.ndarray, room_K: Sequence[int]) -> list[list[int]]:
    """The bins, each a list of the indices of its things, ascending; a function of the sizes alone.

    Best-fit decreasing decides how many bins there are: the largest thing first, each into the fullest bin that has
    room. Then the emptiest bin with room takes each thing instead, which fills as many bins evenly, if that works out.

    Args:
        sizes_NK: int ``[N, K]``, of N things in K kinds of room; the first kind decides what is large and full.
        room_K: what a bin has of each kind.

    Raises:
        ValueError: a thing is larger than a bin.
    """
    sizes_NK = np.asarray(sizes_NK).reshape(len(sizes_NK), len(room_K))
    if (sizes_NK > np.asarray(room_K)).any():
        raise ValueError(f"a thing is larger than a bin of {tuple(room_K)}")
    order = np.argsort(-sizes_NK[:, 0], kind="stable")
    bins = _filled(sizes_NK, order, np.tile(room_K, (0, 1)), room_K, fullest=True)
    even = _filled(sizes_NK, order, np.tile(room_K, (len(bins), 1)), room_K, fullest=False)
    chosen = even if len(even) == len(bins) else bins
    return [sorted(things) for things in chosen]


def _filled(
    sizes_NK: np.ndarray, order: np.ndarray, left_MK: np.ndarray, room_K: Sequence[int], *, fullest: bool
) -> list[list[int]]:
    """Bins after all things have gone, in order, to the fullest or emptiest bin; opens further bins where it must."""
    bins: list[list[int]] = [[] for _ in left_MK]
    for index in order:
        fits_M = (left_MK >= sizes_NK[index]).all(1)
        if fits_M.any():
            score_M = np.where(fits_M, left_MK[:, 0] if fullest else -left_MK[:, 0], np.inf)
            chosen = int(np.argmin(score_M))
        else:
            chosen = len(bins)
            bins.append([])
            left_MK = np.concatenate([left_MK, np.asarray(room_K)[None]])
        left_MK[chosen] -= sizes_NK[index]
        bins[chosen].append(int(index))
    return bins
