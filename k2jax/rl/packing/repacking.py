"""Packed rows once more, with their documents in another order and beside other neighbours.

A document is a root with everything below it: consecutive tokens of a row that attend to no others. Where it lies
changes its log-probabilities by rounding, and through what a batch shares, such as the room in an exchange of experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from k2jax.batch import PackedBatch


class Document(NamedTuple):
    """Where a document lies: tokens ``start .. end - 1`` of row ``row``."""

    row: int
    start: int
    end: int


def documents(rows: Sequence[PackedBatch]) -> list[Document]:
    """All documents of rows ``[S]``, row by row from left to right."""
    found = []
    for number, row in enumerate(rows):
        start = 0
        while start < len(row.exit) and row.exit[start] > start:  # padding, which ends a row, leaves at itself
            found.append(Document(number, start, int(row.exit[start])))
            start = found[-1].end
    return found


def repacked(
    rows: Sequence[PackedBatch], padding: PackedBatch, rng: np.random.Generator
) -> tuple[list[PackedBatch], list[tuple[Document, Document]]]:
    """Lays the documents out first-fit in a random order.

    Args:
        rows: rows ``[S]`` of NumPy arrays. Leaves of their targets whose first axis is S move with the tokens; tables
            of turns and responses do not, and are those of padding in the result.
        padding: an empty row of the same length.
        rng: decides the order.

    Returns:
        New rows ``[S]``, and for every document where it was and where it is.
    """
    moved, ends, places = [], [], []
    every = documents(rows)
    for number in rng.permutation(len(every)):
        old = every[number]
        size = old.end - old.start
        row = next((row for row, end in enumerate(ends) if end + size <= len(padding.tokens)), len(ends))
        if row == len(ends):
            moved.append(jax.tree.map(np.copy, padding))
            ends.append(0)
        new = Document(row, ends[row], ends[row] + size)
        _move(rows[old.row], old, moved[row], new)
        ends[row] = new.end
        places.append((old, new))
    return moved, places


def _move(source: PackedBatch, old: Document, row: PackedBatch, new: Document) -> None:
    """Copies a document's tokens and targets into ``row``, with its indices shifted to where it is."""
    length, shift = len(row.tokens), new.start - old.start

    def copy(leaf: np.ndarray, values: np.ndarray) -> None:
        if len(leaf) == length:
            leaf[new.start : new.end] = values[old.start : old.end]

    jax.tree.map(copy, row, source)
    row.exit[new.start : new.end] += shift
    parent = row.parent[new.start : new.end]
    parent[parent >= 0] += shift
