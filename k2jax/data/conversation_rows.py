"""Rows of whole conversations: none is cut, and only what the assistant wrote has weight.

A stored value is twice a token's id, plus one where the token is trained on. Conversations are packed by best fit, the
longest first: each goes into the fullest row that still has room for it. The packing depends on the lengths alone. It
is planned at opening, of a large source in windows of consecutive conversations.
"""

from __future__ import annotations

import bisect

import numpy as np

from k2jax.batch import PackedBatch, pack_row
from k2jax.data.best_fit import fitted
from k2jax.data.shards import TokenStream

PLANNED_TOGETHER = 2**23
"""Conversations of a window, of which no row holds those of two."""


def unmarked(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Token ids int32 ``[tokens]`` and whether each is trained on, bool ``[tokens]``, of stored values."""
    return values >> 1, (values & 1).astype(np.bool_)


class ConversationRows:
    """Rows of ``length`` tokens of a split of conversations; a random-access source for grain.

    Attributes:
        stream: the split.
        length: tokens of a row.
    """

    def __init__(self, stream: TokenStream, length: int):
        """Packs the conversations, each of at most ``length`` tokens."""
        self.stream, self.length = stream, length
        self._firsts = range(0, stream.documents, PLANNED_TOGETHER)
        offsets = (stream.offsets[first : first + PLANNED_TOGETHER + 1] for first in self._firsts)
        self._windows = [fitted(np.diff(each), length) for each in offsets]
        self._starts = np.cumsum([0, *map(len, self._windows)]).tolist()  # of the windows, among the rows

    def __len__(self) -> int:
        """Number of rows."""
        return self._starts[-1]

    @property
    def tokens(self) -> int:
        """Tokens of all rows, without padding."""
        return int(self.stream.offsets[-1])

    def __getitem__(self, index: int) -> PackedBatch:
        """Row ``index``, a PackedBatch of NumPy arrays ``[length]``; weights are 1 on what the assistant wrote.

        Raises:
            IndexError: if the index is outside ``[0, len)``.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        parts = [unmarked(self.stream.read(*self._span(number))) for number in self._conversations(index)]
        row = pack_row([ids for ids, _ in parts], self.length)
        trained = np.concatenate([part for _, part in parts])
        row.targets["weights"][: len(trained)] *= trained  # a conversation's first token has no weight as it is
        return row

    def beginning(self, number: int, tokens: int) -> np.ndarray:
        """The prompt of conversation ``number``: all that precedes the assistant's first token, of any length."""
        ids, trained = unmarked(self.stream.read(*self._span(number)))
        return ids[: np.argmax(trained)]

    def stretches(self, index: int) -> list[tuple[int, int]]:
        """The stretches of the stream that row ``index`` reads."""
        return [self._span(number) for number in self._conversations(index)]

    def _conversations(self, index: int) -> list[int]:
        window = bisect.bisect_right(self._starts, index) - 1
        numbers = self._windows[window][index - self._starts[window]]
        return [self._firsts[window] + number for number in numbers]

    def _span(self, number: int) -> tuple[int, int]:
        start, end = (int(offset) for offset in self.stream.offsets[number : number + 2])
        return start, end
