"""Packing of items into rows by best fit, the longest first: of conversations by tokens, and of images by patches."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np


def best_fit(lengths: Sequence[int] | np.ndarray, capacity: int) -> list[list[int]]:
    """Packs items into rows, the longest first, each into the fullest row that has room.

    Args:
        lengths: of the items, each at most ``capacity``.
        capacity: of a row.

    Returns:
        The items of every row, ascending, and the rows in the order of their first items.
    """
    rows: list[list[int]] = []
    with_room: dict[int, list[int]] = {}  # rows by the room that they have left
    rooms: list[int] = []  # the keys of with_room, ascending
    for item in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        length = int(lengths[item])
        at = bisect.bisect_left(rooms, length)
        if at < len(rooms):
            room = rooms[at]
            row = with_room[room].pop()
            if not with_room[room]:
                del with_room[room], rooms[at]
        else:
            room, row = capacity, len(rows)
            rows.append([])
        rows[row].append(item)
        if room - length not in with_room:
            with_room[room - length] = []
            bisect.insort(rooms, room - length)
        with_room[room - length].append(row)
    return sorted(sorted(row) for row in rows)
