"""Rows of whole conversations with images: packed under two budgets, tokens and patches, by sizes alone.

What a row holds is decided once; the text that fills its free tokens (``k2jax.data.filling``) is another in each pass.
Its images are decoded, and augmented as a function of seed, step and conversation, when a batch is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from k2jax.batch import PackedBatch, pack_row
from k2jax.data.best_fit import best_fit

if TYPE_CHECKING:
    from k2jax.data.images.conversations import RenderedConversation
    from k2jax.data.images.corpus import VisualSplit
    from k2jax.data.images.patch_packing import PatchChunk

_OPEN_ROWS = 512  # that a conversation may still join: packing stays linear


@dataclasses.dataclass(frozen=True)
class PlannedRow:
    """A row whose images are not decoded yet.

    Attributes:
        split: where its conversations are.
        numbers: of its conversations.
        length: tokens of the row.
        augment: share of conversations that are augmented.
        row: its number among the rows of the split.
        filling: reads the documents of text that follow the conversations.
    """

    split: VisualSplit
    numbers: tuple[int, ...]
    length: int
    augment: float
    row: int = 0
    filling: Callable[[], list[np.ndarray]] = list

    @property
    def grids(self) -> list[tuple[int, int, int]]:
        """Frames, height and width in patches of all its chunks: what placing them takes."""
        return [grid for number in self.numbers for grid in self.split.grids(number)]

    def build(self, key: tuple[int, int] | None, needed: Collection[int]) -> PackedBatch:
        """Renders the row ``[S]`` of NumPy arrays with its images, of which those that are not needed have no pixels.

        Args:
            key: seed and step, of which augmentation is a function; None augments nothing.
            needed: numbers of the row's chunks that are decoded; a drawn picture is in any case.
        """
        parts = [self._rendered(number, key, own) for number, own in self._needed(needed)]
        row = pack_row([*(part.ids for part in parts), *self.filling()], self.length)
        feature = np.full(self.length, -1, np.int32)
        chunks: list[PatchChunk] = []
        start = 0
        for part in parts:
            stop, before = start + len(part.ids), sum(chunk.features for chunk in chunks)
            row.targets["weights"][start:stop] *= part.trained
            feature[start:stop] = np.where(part.feature < 0, -1, part.feature + before)
            chunks += part.chunks
            start = stop
        return row.replace(media=feature, patches=chunks)

    def pixels(self, key: tuple[int, int] | None, needed: Collection[int]) -> dict[int, PatchChunk]:
        """The chunks that are needed of a row whose tokens are not; only their conversations are read."""
        found, first = {}, 0
        for number, own in self._needed(needed):
            if own:
                chunks = self._rendered(number, key, own).chunks
                found |= {first + chunk: chunks[chunk] for chunk in own}
            first += len(self.split.grids(number))
        return found

    def _needed(self, needed: Collection[int]) -> Iterator[tuple[int, set[int]]]:
        """The row's conversations, and which of the chunks of each are needed."""
        first = 0
        for number in self.numbers:
            stop = first + len(self.split.grids(number))
            yield number, {chunk - first for chunk in range(first, stop) if chunk in needed}
            first = stop

    def _rendered(self, number: int, key: tuple[int, int] | None, needed: set[int]) -> RenderedConversation:
        conversation, renderer = self.split.conversation(number, needed), self.split.renderer
        rng = np.random.default_rng([*key, number]) if key else None
        if rng and rng.random() < self.augment and (drawn := renderer.draw(conversation, rng)):
            rendered = renderer.render(conversation, drawn)
            if len(rendered.ids) <= self.split.tokens[number]:  # coordinates with more digits have no room
                return rendered
        return renderer.render(conversation)


class VisualRows:
    """Rows of ``length`` tokens whose images fill at most ``each`` rows of ``patches`` patches; a source for grain.

    Attributes:
        stream: the split.
        length: tokens of a row.
    """

    def __init__(self, stream: VisualSplit, length: int, *, patches: int, each: int = 1, augment: float = 0.0):
        """Packs the conversations, each of which fits a row."""
        self.stream, self.length, self._augment = stream, length, augment
        chunks = None if each == 1 else lambda number: [math.prod(grid) for grid in stream.grids(number)]
        self._rows = fit_two_budgets(stream.tokens, stream.patches, length, patches, each=each, chunks=chunks)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._rows)

    @property
    def tokens(self) -> int:
        """Tokens of all rows, those that features stand for included, without padding."""
        return int(self.stream.tokens.sum())

    @property
    def free(self) -> np.ndarray:
        """Tokens that each row leaves free, int64 ``[rows]``."""
        return np.array([self.length - int(self.stream.tokens[row].sum()) for row in self._rows], np.int64)

    def __getitem__(self, index: int) -> PlannedRow:
        """Row ``index``.

        Raises:
            IndexError: if the index is outside ``[0, len)``.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return PlannedRow(self.stream, tuple(self._rows[index]), self.length, self._augment, index)


def fit_two_budgets(
    tokens: np.ndarray,
    patches: np.ndarray,
    length: int,
    most: int,
    *,
    each: int = 1,
    chunks: Callable[[int], list[int]] | None = None,
) -> list[list[int]]:
    """Packs conversations into rows, the longest first, each into the row with the fewest free tokens that has room.

    Args:
        tokens: int ``[n]``, tokens of each, at most ``length``.
        patches: int ``[n]``, patches of each.
        length: tokens of a row.
        most: patches of a row of the tower.
        each: rows of the tower that the chunks of a row may fill.
        chunks: patches of the chunks of a conversation, which fit ``each`` rows of the tower; None where that is one.

    Returns:
        The conversations of every row, ascending, and the rows in the order of their first conversations.
    """
    rows: list[list[int]] = []
    open_rows, first = _OpenRows(length, most, each), 0
    of_one = chunks or (lambda item: [int(patches[item])])
    share = np.maximum(np.asarray(tokens) / length, np.asarray(patches) / (most * each))
    for item in np.argsort(-share, kind="stable").tolist():
        at = open_rows.place(int(tokens[item]), of_one(item))
        if at == len(rows) - first:
            rows.append([])
            if at == _OPEN_ROWS:
                open_rows.close_first()
                first, at = first + 1, at - 1
        rows[first + at].append(item)
    if each > 1:
        rows = [part for row in rows for part in _placeable(row, of_one, most, each)]
    return sorted(sorted(row) for row in rows)


class _OpenRows:
    """What rows that may still be joined have free: tokens, and patches in each of their rows of the tower."""

    def __init__(self, length: int, most: int, each: int):
        self._length, self._empty = length, [most] * each
        self._free = np.zeros((3, 0), np.int64)  # tokens; patches, and the most of one of their rows
        self._patches: list[list[int]] = []

    def place(self, tokens: int, chunks: list[int]) -> int:
        """The row that takes a conversation; the last, which is new, where no other has room."""
        needed = [[tokens], [sum(chunks)], [max(chunks, default=0)]]
        rows = np.flatnonzero((self._free >= needed).all(0))
        while len(rows):
            at = int(rows[self._free[0, rows].argmin()])
            if left := _without(self._patches[at], chunks):
                break
            rows = rows[rows != at]
        else:
            self._patches.append(self._empty)
            self._free = np.append(self._free, [[self._length], [0], [0]], 1)
            at, left = len(self._patches) - 1, _without(self._empty, chunks)
        self._patches[at], self._free[:, at] = left, (self._free[0, at] - tokens, sum(left), max(left))
        return at

    def close_first(self) -> None:
        """Nothing joins the first row any more."""
        self._free = self._free[:, 1:]
        del self._patches[0]


def _without(free: list[int], chunks: list[int]) -> list[int]:
    """What rows of the tower leave of their free patches, by best fit, the largest chunk first; none without room."""
    free = list(free)
    for size in sorted(chunks, reverse=True):
        least = min((left for left in free if left >= size), default=None)
        if least is None:
            return []
        free[free.index(least)] -= size
    return free


def _placeable(row: list[int], chunks: Callable[[int], list[int]], most: int, each: int) -> list[list[int]]:
    """A row, in halves where its chunks fit in the order of their conversations, and not as they are placed later."""
    if len(row) == 1 or len(best_fit([size for item in row for size in chunks(item)], most)) <= each:
        return [row]
    half = len(row) // 2
    return [part for part in (row[:half], row[half:]) for part in _placeable(part, chunks, most, each)]
