"""Rows of a token stream with random access; each token but the first of a document is a target exactly once.

Row i covers stream positions ``[i * (S - 1), i * (S - 1) + S)``. Adjacent rows share one token: a document that is cut
there begins, in the next row, with its previous token as context.
"""

from __future__ import annotations

import hashlib

import numpy as np

from k2jax.batch import PackedBatch, pack_row
from k2jax.data.shards import TokenStream
from k2jax.errors import UserError


class RowSource:
    """Rows of ``sequence_length`` tokens of a split; a random-access source for grain.

    Attributes:
        stream: the split.
        length: tokens of a row.
    """

    def __init__(self, stream: TokenStream, sequence_length: int):
        """Raises UserError if the whole split is too short for a token and its target."""
        if stream.tokens < 2:
            raise UserError(f"a split holds {stream.tokens} tokens: it needs at least 2, a token and its target")
        self.stream, self.length = stream, sequence_length

    def __len__(self) -> int:
        """Number of rows; the last one may be padded."""
        return -(-(self.stream.tokens - 1) // (self.length - 1))

    @property
    def tokens(self) -> int:
        """Tokens of all rows; those that two rows share count twice."""
        return self.stream.tokens + len(self) - 1

    def __getitem__(self, index: int) -> PackedBatch:
        """Row ``index``, a PackedBatch of NumPy arrays ``[sequence_length]``.

        Raises:
            IndexError: if the index is outside ``[0, len)``.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return pack_row(self.documents(*self.span(index)), self.length)

    def span(self, index: int) -> tuple[int, int]:
        """The stretch of the stream that row ``index`` covers."""
        start = index * (self.length - 1)
        return start, min(start + self.length, self.stream.tokens)

    def stretches(self, index: int) -> list[tuple[int, int]]:
        """The stretches of the stream that row ``index`` reads."""
        return [self.span(index)]

    def documents(self, start: int, stop: int) -> list[np.ndarray]:
        """The documents and fragments of documents in a stretch of the stream."""
        return np.split(self.stream.read(start, stop), self.stream.offsets.between(start, stop) - start)

    def beginning(self, number: int, tokens: int) -> np.ndarray:
        """The first tokens of document ``number``, beginning-of-document token included, at most ``tokens``."""
        first, end = (int(offset) for offset in self.stream.offsets[number : number + 2])
        return self.stream.read(first, min(first + tokens, end))


def bits_per_byte(nll: float, targets: int, split_targets: int, split_bytes: int) -> float:
    """Bits per UTF-8 byte from a summed negative log-likelihood.

    It is exact for a whole split (``targets == split_targets``). For a subset, the number of bytes is estimated from
    the split's ratio of bytes to targets.

    Args:
        nll: negative log-likelihood summed over the targets, end-of-document tokens included [nats].
        targets: number of targets in that sum.
        split_targets: number of targets in the whole split.
        split_bytes: UTF-8 bytes of the split's documents.
    """
    return float(nll / np.log(2) / (split_bytes * (targets / split_targets)))


def shuffle_seed(seed: int, name: str) -> int:
    """Seed of a source's shuffles, a hash: grain adds the epoch, so consecutive seeds would share their shuffles."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=4).digest(), "little")
