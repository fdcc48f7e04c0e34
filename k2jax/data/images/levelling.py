"""Levelling of work over devices whose rows of patches are nearly full: chunks change places a few at a time.

Where rows have room, giving the largest chunk to the device with the least work is enough (``placement``). Full rows
leave no such choice: one of two devices with as many patches has more work, because its chunks are larger. What evens
that out is to exchange a large chunk for several small ones of the same size.
"""

from __future__ import annotations

from collections.abc import Sequence
import itertools
from typing import NamedTuple

import numpy as np

ENOUGH = 1.02
"""Largest work of a device over the mean at which nothing more is moved."""
_PARTNERS = 16  # devices with the least work that the device with the most tries to exchange with
_CHUNKS = 24  # of a row that may move two at a time: their pairs are counted

_LARGE = 8  # of a row's largest chunks that are exchanged for several smaller ones


class _Parts(NamedTuple):
    """What may leave a row: nothing, a chunk, or two; ``members``, and their sizes and work, each ``[parts]``."""

    members: list[tuple[int, ...]]
    sizes: np.ndarray
    work: np.ndarray


class _Exchange(NamedTuple):
    """Members that two rows exchange, and the work that leaves the first."""

    rows: tuple[int, int]
    members: tuple[tuple[int, ...], tuple[int, ...]]
    work: float


def deal_rows(rows: Sequence[Sequence[int]], work: np.ndarray, devices: int) -> list[list[int]]:
    """Puts whole rows in an order in which consecutive ones, as many for each device, have even work.

    Args:
        rows: numbers of the chunks of each; their number is a multiple of ``devices``.
        work: of each chunk.
        devices: their number.
    """
    totals = [float(work[list(row)].sum()) for row in rows]
    dealt: list[list[int]] = [[] for _ in range(devices)]
    sums, each = np.zeros(devices), len(rows) // devices
    for number in sorted(range(len(rows)), key=lambda row: -totals[row]):
        device = int(np.where([len(own) < each for own in dealt], sums, np.inf).argmin())
        dealt[device].append(number)
        sums[device] += totals[number]
    return [list(rows[number]) for own in dealt for number in own]


def level(filled: list[list[int]], sizes: np.ndarray, work: np.ndarray, length: int, devices: int) -> None:
    """Exchanges chunks between rows, in place, until work is even or no exchange makes it more so.

    Args:
        filled: numbers of the chunks of each row; consecutive rows share a device.
        sizes: patches of each chunk.
        work: of each chunk.
        length: patches of a row.
        devices: their number.
    """
    each = len(filled) // devices
    sums = np.array([work[list(itertools.chain(*filled[d * each : d * each + each]))].sum() for d in range(devices)])
    free = np.array([length - sizes[row].sum() for row in filled])
    for _ in range(100 * devices):
        heavy = int(sums.argmax())
        if sums[heavy] <= ENOUGH * sums.mean():
            return
        pairs = itertools.product([heavy], np.argsort(sums, kind="stable")[:_PARTNERS].tolist())
        exchanges = (_between(filled, sizes, work, free, sums, pair, each) for pair in pairs if pair[0] != pair[1])
        found = next((exchange for exchange in exchanges if exchange), None)
        if found is None:
            return
        (a, b), (out, back), moved = found
        filled[a] = [number for number in filled[a] if number not in out] + list(back)
        filled[b] = [number for number in filled[b] if number not in back] + list(out)
        free[a] += sizes[list(out)].sum() - sizes[list(back)].sum()
        free[b] += sizes[list(back)].sum() - sizes[list(out)].sum()
        sums[a // each] -= moved
        sums[b // each] += moved


def _between(
    filled: Sequence[list[int]],
    sizes: np.ndarray,
    work: np.ndarray,
    free: np.ndarray,
    sums: np.ndarray,
    pair: tuple[int, int],
    each: int,
) -> _Exchange | None:
    """The exchange of two devices' rows after which their work differs least; None where all leave as much or more."""
    gap = sums[pair[0]] - sums[pair[1]]
    best, least = None, 0.95 * gap  # a smaller gain is not worth a move
    for a, b in itertools.product(*(range(device * each, device * each + each) for device in pair)):
        ours, theirs = (_parts(filled[row], sizes, work) for row in (a, b))
        moved = ours.work[:, None] - theirs.work[None]
        grown = theirs.sizes[None] - ours.sizes[:, None]
        left = np.where((grown <= free[a]) & (-grown <= free[b]), np.abs(gap - 2 * moved), np.inf)
        i, j = np.unravel_index(left.argmin(), left.shape)
        if left[i, j] < least:
            best, least = _Exchange((a, b), (ours.members[i], theirs.members[j]), float(moved[i, j])), left[i, j]
        for number in sorted(filled[a], key=lambda number: -int(sizes[number]))[:_LARGE]:
            size = int(sizes[number])
            small = [other for other in filled[b] if sizes[other] < size]
            back = _of_size(small, sizes, size - int(free[b]), size + int(free[a]))
            lost = float(work[number] - work[back].sum())
            if back and abs(gap - 2 * lost) < least:
                best, least = _Exchange((a, b), ((number,), tuple(back)), lost), abs(gap - 2 * lost)
    return best


def _of_size(row: list[int], sizes: np.ndarray, low: int, high: int) -> list[int]:
    """Chunks that together have ``low`` to ``high`` patches, small ones first; none where there are no such.

    Sums that the first chunks can have are the bits of a number.
    """
    row = sorted(row, key=lambda number: int(sizes[number]))
    reached = [1]
    for number in row:
        reached.append(reached[-1] | reached[-1] << int(sizes[number]))
    within = (reached[-1] & ((1 << high + 1) - 1)) >> max(low, 1)
    if not within:
        return []
    total, chosen = max(low, 1) + within.bit_length() - 1, []
    for number, before in zip(reversed(row), reversed(reached[:-1]), strict=True):
        if not before >> total & 1:
            chosen.append(number)
            total -= int(sizes[number])
    return chosen


def _parts(row: list[int], sizes: np.ndarray, work: np.ndarray) -> _Parts:
    spread = sorted(row, key=lambda number: int(sizes[number]))
    some = [spread[i * len(spread) // _CHUNKS] for i in range(_CHUNKS)] if len(spread) > _CHUNKS else spread
    members = [(), *((number,) for number in row), *itertools.combinations(some, 2)]
    sums = ([sum(float(of[number]) for number in group) for group in members] for of in (sizes, work))
    return _Parts(members, *map(np.array, sums))
