"""Text in the tokens that rows with images leave free.

A row of conversations with images is full of patches long before it is full of tokens. What is left takes a piece of a
source of text. Each source of text is divided by its rows: some make rows of text, the others are a stream of pieces
for each source with images. Nothing is in two of them, so that no text is trained on more often than its passes say,
and in each stream every token but a document's first is a target exactly once a pass.

Where the piece of a row begins in its stream follows from the row's place in the order of its pass, which is a function
of the seed: a batch needs no state of those before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from k2jax.batch import PackedBatch
from k2jax.data.packing import RowSource, shuffle_seed
from k2jax.data.permutation import shuffled
from k2jax.mixture_plan import MixturePlan

if TYPE_CHECKING:
    from k2jax.data.images.image_rows import PlannedRow, VisualRows

SHORTEST = 8
"""Tokens of the shortest piece."""
_SLOTS = 4096
"""Consecutive rows of a source that are divided as all its rows are."""
_GOLDEN = (math.sqrt(5) - 1) / 2


def piece_tokens(free: np.ndarray) -> np.ndarray:
    """Targets of the pieces that fill so many free tokens, int ``[rows]``; 0 where a piece would be too short.

    A piece may cross from one row of its source into another, and then has two tokens that are no targets.
    """
    return np.where(free >= SHORTEST, free - 2, 0)


class RowsPart:
    """Some rows of a source, evenly spread over it; all of them where the source has too few to divide.

    Attributes:
        stream: of the source.
        length: tokens of a row.
    """

    def __init__(self, rows: RowSource, slots: np.ndarray | None = None):
        """The rows whose numbers, modulo the number of slots, are marked in ``slots``, bool; None is all."""
        self._rows, self.stream, self.length = rows, rows.stream, rows.length
        whole, rest = divmod(len(rows), _SLOTS)
        own = np.arange(_SLOTS) if slots is None else np.flatnonzero(slots)
        count = whole * len(own) + int(np.searchsorted(own, rest))
        self._own, self._count = (own, count) if count else (np.arange(_SLOTS), len(rows))

    def __len__(self) -> int:
        """Number of rows."""
        return self._count

    @property
    def tokens(self) -> int:
        """Tokens of all rows, as of the whole source."""
        return round(self._rows.tokens * self._count / len(self._rows))

    def number(self, index: int) -> int:
        """Number in the source of row ``index`` of the part."""
        period, place = divmod(index, len(self._own))
        return period * _SLOTS + int(self._own[place])

    def stretches(self, index: int) -> list[tuple[int, int]]:
        """The stretches of the stream that row ``index`` reads."""
        return self._rows.stretches(self.number(index))

    def __getitem__(self, index: int) -> PackedBatch:
        """Row ``index``; raises IndexError outside ``[0, len)``."""
        if not 0 <= index < self._count:
            raise IndexError(f"row {index} of {self._count}")
        return self._rows[self.number(index)]

    def documents(self, index: int, first: int, targets: int) -> list[np.ndarray]:
        """Documents and fragments of row ``index`` from its token ``first`` on, of at most so many targets."""
        start, stop = self._rows.span(self.number(index))
        start += first
        stop = min(stop, start + targets + 1)
        return self._rows.documents(start, stop) if stop > start + 1 else []


def divided(rows: RowSource, shares: Sequence[float]) -> list[RowsPart]:
    """Divides the rows of a source in these shares, each evenly spread; one without a share has all rows."""
    least = 2 * sum(shares) / _SLOTS
    own = [number for number, share in enumerate(shares) if share > 0]
    if not own:
        return [RowsPart(rows) for _ in shares]
    plan = MixturePlan([max(shares[number], least) for number in own], [None] * len(own))
    drawn = np.array([own[plan[slot][0]] for slot in range(_SLOTS)])
    return [RowsPart(rows, drawn == number) if number in own else RowsPart(rows) for number in range(len(shares))]


class _Stream:
    """The pieces that one source of text gives to the rows of one source with images."""

    def __init__(self, part: RowsPart, *, seed: int, max_epochs: float):
        """Limits as of the source."""
        self._part = part
        self._order = shuffled(range(len(part)), seed)
        self._limit = max(1, math.floor(max_epochs * len(part))) if max_epochs else math.inf

    def documents(self, first: int, targets: int) -> list[np.ndarray]:
        """Documents and fragments of so many targets from the stream's target ``first`` on; at most two tokens more."""
        number, first = divmod(first, self._part.length - 1)
        found: list[np.ndarray] = []
        while targets and number < self._limit:
            taken = min(targets, self._part.length - 1 - first)
            found += self._part.documents(int(self._order[number]), first, taken)
            number, first, targets = number + 1, 0, targets - taken
        return found


class FilledRows:
    """The rows of a source with images in the order of their passes, each with the piece that fills it.

    Args:
        rows: of the source.
        streams: of the sources of text.
        shares: of each of them, its share of the pieces.
        phases: first draw of each phase, and the share of its rows that are filled.
        seed: of the order of rows.
    """

    def __init__(
        self,
        rows: VisualRows,
        streams: Sequence[_Stream],
        shares: Sequence[float],
        phases: Sequence[tuple[int, float]],
        seed: int,
    ):
        self._rows, self._streams, self._seed = rows, streams, seed
        self._targets = piece_tokens(rows.free)
        ends = np.cumsum(shares)
        places = _spread(np.arange(len(rows))) * ends[-1]
        self._source = np.minimum(np.searchsorted(ends, places, side="right"), len(streams) - 1)
        self._first_draws, self._filled = (np.array(each) for each in zip(*phases, strict=True))
        self._bases = [np.zeros(len(streams), np.int64)]  # targets of each stream that earlier passes took
        self._last: tuple[int, tuple[np.ndarray, ...]] | None = None

    def row(self, draw: int) -> PlannedRow:
        """The row of a draw, whose piece is read where the row is built."""
        epoch, place = divmod(draw, len(self._rows))
        if self._last is None or self._last[0] != epoch:
            self._last = epoch, self._pass(epoch)
        order, targets, starts = self._last[1]
        number = int(order[place])
        row = self._rows[number]
        if not targets[place]:
            return row
        stream = self._streams[self._source[number]]
        filling = functools.partial(stream.documents, int(starts[place]), int(targets[place]))
        return dataclasses.replace(row, filling=filling)

    def _pass(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of every draw of a pass, int64 ``[rows]``: its row, the targets of its piece, and where that begins."""
        while len(self._bases) <= epoch:
            _, targets, sources = self._drawn(len(self._bases) - 1)
            taken = np.bincount(sources, targets, len(self._streams)).astype(np.int64)
            self._bases.append(self._bases[-1] + taken)
        order, targets, sources = self._drawn(epoch)
        starts = np.zeros_like(targets)
        for number, base in enumerate(self._bases[epoch]):
            own = sources == number
            starts[own] = base + np.cumsum(targets[own]) - targets[own]
        return order, targets, starts

    def _drawn(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of every draw of a pass: its row, the targets of its piece, and the source of that."""
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self._rows))
        draws = epoch * len(order) + np.arange(len(order))
        phases = np.searchsorted(self._first_draws, draws, side="right") - 1
        filled = _spread(draws) < self._filled[phases]
        return order, np.where(filled, self._targets[order], 0), self._source[order]


def filled_rows(
    rows: Mapping[str, VisualRows],
    parts: Mapping[str, Mapping[str, RowsPart]],
    shares: Mapping[str, float],
    *,
    phases: Mapping[str, Sequence[tuple[int, float]]],
    max_epochs: Mapping[str, float],
    seed: int,
) -> dict[str, FilledRows]:
    """The rows of every source with images, filled.

    Args:
        rows: of every source with images.
        parts: of every source of text, its part for each source with images.
        shares: of every source of text, its share of the pieces.
        phases: of every source with images, see ``FilledRows``.
        max_epochs: of every source of text, most passes; 0 is no limit.
        seed: of the order of rows.
    """
    filled = {}
    for visual, own in rows.items():
        streams = [
            _Stream(part[visual], seed=shuffle_seed(seed, f"{visual}/{name}"), max_epochs=max_epochs[name])
            for name, part in parts.items()
        ]
        filled[visual] = FilledRows(
            own, streams, [shares[name] for name in parts], phases[visual], shuffle_seed(seed, visual)
        )
    return filled


def _spread(number: np.ndarray) -> np.ndarray:
    """Multiples of the golden ratio modulo 1: in [0, 1), and spread more evenly than random numbers."""
    return (number + 1) * _GOLDEN % 1.0
