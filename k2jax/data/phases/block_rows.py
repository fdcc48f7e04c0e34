"""Rows of chosen stretches of a source of text, its blocks, which follow each other in any order.

Phases of a run have rows of different lengths, so that no rows are common to all. Blocks are: a source is divided into
the same ones in every phase, whatever the length of rows, and a phase reads the blocks that follow those of the phases
before it. Where one block ends and another begins, a document is cut as at the end of a row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from k2jax.data.packing import RowSource
from k2jax.data.shards import TokenStream

BLOCKS = 64
"""Blocks of a small source."""
LONGEST = 2**22
"""Tokens of a block of a large source: a document or a row is cut seldom."""


def block_starts(tokens: int) -> np.ndarray:
    """Where the blocks of a source of so many tokens begin, and where the last one ends, int64 ``[blocks + 1]``."""
    size = max(2, min(LONGEST, tokens // BLOCKS))
    starts = np.arange(max(1, tokens // size) + 1, dtype=np.int64) * size
    starts[-1] = tokens
    return starts


class BlockRows(RowSource):
    """Rows of ``sequence_length`` tokens of the blocks ``[count]`` of a split, which may come several times."""

    def __init__(self, stream: TokenStream, sequence_length: int, blocks: np.ndarray):
        super().__init__(stream, sequence_length)
        starts = block_starts(stream.tokens)
        self._starts = starts[blocks]
        self._ends = np.cumsum(np.diff(starts)[blocks])

    def __len__(self) -> int:
        """Number of rows; the last one may be padded."""
        return -(-(self.size - 1) // (self.length - 1))

    @property
    def size(self) -> int:
        """Tokens of the blocks."""
        return int(self._ends[-1])

    @property
    def tokens(self) -> int:
        """Tokens of all rows; those that two rows share count twice."""
        return self.size + len(self) - 1

    def span(self, index: int) -> tuple[int, int]:
        """The stretch of the blocks, one after the other, that row ``index`` covers."""
        start = index * (self.length - 1)
        return start, min(start + self.length, self.size)

    def documents(self, start: int, stop: int) -> list[np.ndarray]:
        """The documents and fragments of documents in a stretch of the blocks, one after the other."""
        return [part for first, last in self._in_stream(start, stop) for part in RowSource.documents(self, first, last)]

    def stretches(self, index: int) -> list[tuple[int, int]]:
        """The stretches of the stream that row ``index`` reads."""
        return list(self._in_stream(*self.span(index)))

    def _in_stream(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        block = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            end, own = min(stop, int(self._ends[block])), int(self._starts[block])
            first = own + start - (int(self._ends[block - 1]) if block else 0)
            yield first, first + end - start
            start, block = end, block + 1


class PhaseRows(BlockRows):
    """The rows of a source that one phase reads.

    Args:
        stream: the split.
        sequence_length: tokens of a row.
        windows: blocks, int ``[count]`` each; a window is a part of one pass over the source.

    Attributes:
        windows: the rows of each, which are read one after the other, those of a window in any order.
    """

    def __init__(self, stream: TokenStream, sequence_length: int, windows: list[np.ndarray]):
        super().__init__(stream, sequence_length, np.concatenate(windows))
        self.windows = [BlockRows(stream, sequence_length, blocks) for blocks in windows]
