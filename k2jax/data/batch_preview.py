"""What a step of a run sees: its rows, the documents in them, and which of their tokens are trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from k2jax.batch import PackedBatch
from k2jax.data.training_data import TrainingData

SHOWN = 60
"""Characters at each end of a document that are shown."""


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


def pieces_of(data: TrainingData, step: int) -> Iterator[RowPiece]:
    """The pieces of all rows of a step, in order; padding is none.

    Args:
        data: of the run, of text alone.
        step: from 1, as the run counts them.
    """
    batch, sources = data.loader.batch(step - 1), data.loader.sources(step - 1)
    for row, source in enumerate(sources):
        for begin, end in _bounds(batch, row):
            weights = batch.targets["weights"][row, begin:end]
            text = data.tokenizer.decode(batch.tokens[row, begin:end].tolist())
            shown = text if len(text) <= 2 * SHOWN else f"{text[:SHOWN]} … {text[-SHOWN:]}"
            yield RowPiece(row, source, begin, end, int(np.count_nonzero(weights)), shown)


def _bounds(batch: PackedBatch, row: int) -> list[tuple[int, int]]:
    """Where pieces begin and end: each begins with a token that none before it predicts."""
    tokens = np.flatnonzero(batch.exit[row] > np.arange(batch.exit.shape[1]))  # of padding it is the own index
    if not len(tokens):
        return []
    begins = [int(place) for place in np.flatnonzero(batch.parent[row] < 0) if place <= tokens[-1]]
    return list(zip(begins, [*begins[1:], int(tokens[-1]) + 1], strict=True))
