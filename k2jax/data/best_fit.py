"""Packing of items into rows by best fit, the longest first: of conversations by tokens, and of images by patches.

All items of one length are placed together. The fullest row that has room for one takes the next ones too, until it has
no room for another: so rows with equal room take equally many, and the work grows with the number of lengths.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class FittedRows:
    """Items by rows, in two arrays.

    Attributes:
        items: int ``[items]``, row after row, ascending in each.
        starts: int64 ``[rows + 1]``, where each row begins among them.
    """

    def __init__(self, items: np.ndarray, starts: np.ndarray):
        self.items, self.starts = items, starts

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> list[int]:
        """The items of a row; raises IndexError."""
        row = range(len(self))[row]
        return self.items[self.starts[row] : self.starts[row + 1]].tolist()


def best_fit(lengths: Sequence[int] | np.ndarray, capacity: int) -> list[list[int]]:
    """The rows of ``fitted``, as lists."""
    return list(fitted(lengths, capacity))


def fitted(lengths: Sequence[int] | np.ndarray, capacity: int) -> FittedRows:
    """Packs items into rows, the longest first, each into the fullest row that has room.

    Args:
        lengths: of the items, each at most ``capacity``.
        capacity: of a row.

    Returns:
        The items of every row, ascending, and the rows in the order of their first items.
    """
    lengths = np.asarray(lengths)
    if not len(lengths):
        return FittedRows(np.zeros(0, np.int64), np.zeros(1, np.int64))
    order = np.argsort(-lengths, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(lengths[order])) + 1, len(order))
    rows, begin = _Rows(capacity), 0
    row_of = np.empty(len(order), np.int64)
    for end in ends.tolist():
        placed = rows.place(int(lengths[order[begin]]), end - begin)
        row_of[order[begin:end]] = placed
        begin = end
    return _grouped(row_of, rows.count)


class _Rows:
    """Rows by the room that they have left; of rows with equal room the latest comes first.

    Attributes:
        count: number of rows.
    """

    def __init__(self, capacity: int):
        self.count, self._capacity = 0, capacity
        self._by_room: dict[int, list[np.ndarray]] = {}  # in pieces, the latest last

    def place(self, length: int, count: int) -> np.ndarray:
        """The rows of ``count`` items of one length, int64 ``[count]``; no later item is longer."""
        parts = []
        for room in sorted(room for room in self._by_room if room >= length):
            if not count:
                break
            each = _each(room, length, count)
            taken = self._take(room, -(-count // each))
            parts.append(self._fill(taken, room, length, min(count, len(taken) * each)))
            count -= len(parts[-1])
        if count:
            new = -(-count // _each(self._capacity, length, count))
            rows, self.count = np.arange(self.count, self.count + new), self.count + new
            parts.append(self._fill(rows, self._capacity, length, count))
        return np.concatenate(parts)

    def _take(self, room: int, most: int) -> np.ndarray:
        """The latest rows with so much room, at most so many, the latest first."""
        pieces, taken = self._by_room[room], []
        while most and pieces:
            piece = pieces.pop()
            if len(piece) > most:
                pieces.append(piece[:-most])
            taken.append(piece[-most:][::-1])
            most -= len(taken[-1])
        if not pieces:
            del self._by_room[room]
        return np.concatenate(taken)

    def _fill(self, rows: np.ndarray, room: int, length: int, count: int) -> np.ndarray:
        """Places items into rows with equal room, the first of them first; the last one may have room for more."""
        each = _each(room, length, count)
        in_last = count - each * (len(rows) - 1)
        self._leave(rows[:-1], room - each * length)
        self._leave(rows[-1:], room - in_last * length)
        return np.repeat(rows, each)[:count]

    def _leave(self, rows: np.ndarray, room: int) -> None:
        if len(rows):
            self._by_room.setdefault(room, []).append(rows)


def _each(room: int, length: int, count: int) -> int:
    """How many items of a length a row takes; a row of nothing takes all."""
    return room // length if length else count


def _grouped(row_of: np.ndarray, rows: int) -> FittedRows:
    """Items by rows, from the row of each."""
    order = np.argsort(row_of, kind="stable")
    sizes = np.bincount(row_of, minlength=rows)
    starts = np.cumsum(sizes) - sizes
    ranked = np.argsort(order[starts], kind="stable")  # rows by their first items
    sizes, begins = sizes[ranked], starts[ranked]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    places = np.arange(len(order)) + np.repeat(begins - starts[:-1], sizes)
    return FittedRows(order[places], starts)
