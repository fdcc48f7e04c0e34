"""What a step of a run sees: its rows, the documents in them, and which of their tokens are trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from k2jax.batch import PackedBatch
from k2jax.data.manifest import TRAIN
from k2jax.data.training_data import TrainingData

SHOWN = 60
"""Characters at each end of a document that are shown."""
_TOGETHER = 64  # rows that are read at a time: a step of K2 has a gigabyte


class RowPiece(NamedTuple):
    """A document, or a part of one, in a row.

    Attributes:
        row: of the batch.
        source: of the row.
        begin: its first token in the row.
        end: one past its last one.
        trained: tokens of it that the loss reads.
        text: its beginning and its end.
    """

    row: int
    source: str
    begin: int
    end: int
    trained: int
    text: str


class SourceUse(NamedTuple):
    """What a run has seen of a source.

    Attributes:
        source: its name.
        rows: of the step.
        passes: over the source up to the end of the step.
        tokens: of the source in all these passes; exact after whole ones.
    """

    source: str
    rows: int
    passes: float
    tokens: int


def pieces_of(data: TrainingData, step: int, rows: Sequence[int] | None = None) -> Iterator[RowPiece]:
    """The pieces of rows of a step, in order; padding is none.

    Args:
        data: of the run, of text alone.
        step: from 1, as the run counts them.
        rows: of the batch, one after the other; None is all of them.
    """
    sources = data.loader.sources(step - 1)
    rows = range(len(sources)) if rows is None else rows
    for start in range(0, len(rows), _TOGETHER):
        own = rows[start : start + _TOGETHER]
        batch = data.loader.rows(step - 1, own)
        for at, row in enumerate(own):
            for begin, end in _bounds(batch, at):
                weights = batch.targets["weights"][at, begin:end]
                text = data.tokenizer.decode(batch.tokens[at, begin:end].tolist())
                shown = text if len(text) <= 2 * SHOWN else f"{text[:SHOWN]} … {text[-SHOWN:]}"
                yield RowPiece(row, sources[row], begin, end, int(np.count_nonzero(weights)), shown)


def use_of(data: TrainingData, step: int) -> list[SourceUse]:
    """What a run has seen of each source when a step is done, counted from 1."""
    rows, passes = Counter(data.loader.sources(step - 1)), data.loader.epochs(step)
    sizes = {name: manifest["splits"][TRAIN]["tokens"] for name, manifest in data.manifests.items()}
    return [SourceUse(name, rows[name], passes[name], round(passes[name] * sizes[name])) for name in sorted(sizes)]


def _bounds(batch: PackedBatch, row: int) -> list[tuple[int, int]]:
    """Where pieces begin and end: each begins with a token that none before it predicts."""
    tokens = np.flatnonzero(batch.exit[row] > np.arange(batch.exit.shape[1]))  # of padding it is the own index
    if not len(tokens):
        return []
    begins = [int(place) for place in np.flatnonzero(batch.parent[row] < 0) if place <= tokens[-1]]
    return list(zip(begins, [*begins[1:], int(tokens[-1]) + 1], strict=True))
