"""Levelling of work over devices whose rows of patches are nearly full: chunks change places a few at a time.

Where rows have room, giving the largest chunk to the device with the least work is enough (``placement``). Full rows
leave no such choice: one of two devices with as many patches has more work, because its chunks are larger. What evens
that out is to exchange a large chunk for several small ones of the same size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        work: of each chunk, float ``[chunks]`` [FLOPs].
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
        sizes: patches of each chunk, int ``[chunks]``.
        work: of each chunk, float ``[chunks]`` [FLOPs].
        length: patches of a row.
        devices: their number.
    """
    rows = _Rows(filled, sizes, work, length, devices)
    for _ in range(100 * devices):
        heavy = int(rows.sums.argmax())
        if rows.sums[heavy] <= ENOUGH * rows.sums.mean():
            return
        partners = np.argsort(rows.sums, kind="stable")[:_PARTNERS].tolist()
        exchanges = (rows.between(heavy, light) for light in partners if light != heavy)
        found = next((exchange for exchange in exchanges if exchange), None)
        if found is None:
            return
        rows.apply(found)


class _Rows:
    """The rows of all devices.

    Attributes:
        sums: work of each device, float ``[devices]`` [FLOPs].
    """

    def __init__(self, filled: list[list[int]], sizes: np.ndarray, work: np.ndarray, length: int, devices: int):
        self._filled, self._sizes, self._work, self._each = filled, sizes, work, len(filled) // devices
        self._free = np.array([length - sizes[row].sum() for row in filled])
        self.sums = np.array([work[row].sum() for row in filled]).reshape(devices, -1).sum(1)

    def between(self, heavy: int, light: int) -> _Exchange | None:
        """The exchange of two devices' rows after which their work differs least; None where none gains enough."""
        gap = self.sums[heavy] - self.sums[light]
        best, least = None, 0.95 * gap  # a smaller gain is not worth a move
        own = (range(device * self._each, (device + 1) * self._each) for device in (heavy, light))
        for pair in itertools.product(*own):
            for exchange in (self._of_few(*pair, gap), *self._of_large(*pair)):
                if (left := abs(gap - 2 * exchange.work)) < least:
                    best, least = exchange, left
        return best

    def apply(self, exchange: _Exchange) -> None:
        """Makes an exchange."""
        (a, b), (out, back), moved = exchange
        filled, sizes = self._filled, self._sizes
        filled[a] = [number for number in filled[a] if number not in out] + list(back)
        filled[b] = [number for number in filled[b] if number not in back] + list(out)
        grown = int(sizes[list(back)].sum() - sizes[list(out)].sum())
        self._free[a] -= grown
        self._free[b] += grown
        self.sums[a // self._each] -= moved
        self.sums[b // self._each] += moved

    def _of_few(self, a: int, b: int, gap: float) -> _Exchange:
        """Up to two chunks of each row; nothing for nothing where no two fit."""
        ours, theirs = (_parts(self._filled[row], self._sizes, self._work) for row in (a, b))
        moved = ours.work[:, None] - theirs.work[None]
        grown = theirs.sizes[None] - ours.sizes[:, None]
        fits = (grown <= self._free[a]) & (-grown <= self._free[b])
        i, j = np.unravel_index(np.where(fits, np.abs(gap - 2 * moved), np.inf).argmin(), moved.shape)
        return _Exchange((a, b), (ours.members[i], theirs.members[j]), float(moved[i, j]))

    def _of_large(self, a: int, b: int) -> Iterator[_Exchange]:
        """A large chunk of the first row for several smaller ones of the second."""
        sizes, room = self._sizes, (int(self._free[b]), int(self._free[a]))
        for number in sorted(self._filled[a], key=lambda number: -int(sizes[number]))[:_LARGE]:
            size = int(sizes[number])
            smaller = [other for other in self._filled[b] if sizes[other] < size]
            if back := _of_size(smaller, sizes, size - room[0], size + room[1]):
                yield _Exchange((a, b), ((number,), tuple(back)), float(self._work[number] - self._work[back].sum()))


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
