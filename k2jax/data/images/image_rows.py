"""Rows of whole conversations with images: packed under two budgets, tokens and patches, by sizes alone.

What a row holds is decided once; the text that fills its free tokens (``k2jax.data.filling``) is another in each pass.
Its images are decoded, and augmented as a function of seed, step and conversation, when a batch is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from k2jax.batch import PackedBatch, pack_row

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
    """Rows of ``length`` tokens and at most ``patches`` patches of a split; a random-access source for grain.

    Attributes:
        stream: the split.
        length: tokens of a row.
    """

    def __init__(self, stream: VisualSplit, length: int, *, patches: int, augment: float = 0.0):
        """Packs the conversations, each of which fits a row."""
        self.stream, self.length, self._augment = stream, length, augment
        self._rows = fit_two_budgets(stream.tokens, stream.patches, length, patches)

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


def fit_two_budgets(tokens: np.ndarray, patches: np.ndarray, length: int, most: int) -> list[list[int]]:
    """Packs conversations into rows, the longest first, each into the row with the fewest free tokens that has room.

    Args:
        tokens: int ``[n]``, tokens of each, at most ``length``.
        patches: int ``[n]``, patches of each, at most ``most``.
        length: tokens of a row.
        most: patches of a row.

    Returns:
        The conversations of every row, ascending, and the rows in the order of their first conversations.
    """
    rows: list[list[int]] = []
    free_tokens, free_patches = np.zeros(0, np.int64), np.zeros(0, np.int64)  # of the rows from ``first`` on
    first = 0
    share = np.maximum(np.asarray(tokens) / length, np.asarray(patches) / most)
    for item in np.argsort(-share, kind="stable").tolist():
        room = (free_tokens >= tokens[item]) & (free_patches >= patches[item])
        if room.any():
            at = int(np.where(room, free_tokens, length + 1).argmin())
        else:
            rows.append([])
            free_tokens, free_patches = np.append(free_tokens, length), np.append(free_patches, most)
            at = len(free_tokens) - 1
            if len(free_tokens) > _OPEN_ROWS:
                free_tokens, free_patches, first, at = free_tokens[1:], free_patches[1:], first + 1, at - 1
        rows[first + at].append(item)
        free_tokens[at] -= tokens[item]
        free_patches[at] -= patches[item]
    return sorted(sorted(row) for row in rows)
