"""The order of a source's rows: a permutation for every pass, of which any place is computed by itself.

Up to ``LARGEST_OF_GRAIN`` rows it is that of grain. Its four rounds do not mix more: of a million rows two that follow
each other come from places with a correlation of 0.45, and of 3.8 billion rows of 0.65, so that the rows of a step
would be neighbours in the corpus. Beyond that it is a Feistel network of eight rounds over the bits of a row's number,
walked until it is one of the source's.
"""

from __future__ import annotations

from collections.abc import Sequence
import hashlib
from typing import Any, Protocol

import grain

LARGEST_OF_GRAIN = 2**18
_ROUNDS = 8
_MASK = 2**64 - 1


class DrawnRows(Protocol):
    """Rows by the number of those that were drawn before, over all passes."""

    def __getitem__(self, draw: int) -> Any: ...


class Permutation:
    """A permutation of ``range(size)``, computed index by index."""

    def __init__(self, size: int, seed: int, epoch: int):
        """One of very many, by seed and epoch.

        Args:
            size: number of indices, up to 2^63.
            seed: at least 0, below 2^64.
            epoch: as the seed.
        """
        self._size, bits = size, max(2, (size - 1).bit_length())
        self._low = bits // 2  # bits of the right part
        self._masks = (1 << bits - self._low) - 1, (1 << self._low) - 1
        digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = [int.from_bytes(digest[8 * n : 8 * n + 8], "little") for n in range(_ROUNDS)]

    def __len__(self) -> int:
        """Number of indices."""
        return self._size

    def __getitem__(self, index: int) -> int:
        """Where an index goes; raises IndexError outside ``[0, size)``."""
        return self._walked(index, range(_ROUNDS))

    def index(self, place: int) -> int:
        """Which index goes to a place; raises IndexError outside ``[0, size)``."""
        return self._walked(place, range(_ROUNDS - 1, -1, -1))

    def _walked(self, number: int, rounds: range) -> int:
        """Through the rounds until the number is an index: less than twice, on average."""
        if not 0 <= number < self._size:
            raise IndexError(f"index {number} of {self._size}")
        while True:
            left, right = number >> self._low, number & self._masks[1]
            for turn in rounds:
                if turn % 2:
                    right ^= _mixed(left, self._keys[turn]) & self._masks[1]
                else:
                    left ^= _mixed(right, self._keys[turn]) & self._masks[0]
            number = left << self._low | right
            if number < self._size:
                return number


class _PermutedRows:
    """Rows in the order of a permutation for each pass."""

    def __init__(self, rows: Sequence[Any], seed: int):
        self._rows, self._seed, self._last = rows, seed, (0, Permutation(len(rows), seed, 0))

    def __getitem__(self, draw: int) -> Any:
        epoch, place = divmod(draw, len(self._rows))
        known, order = self._last
        if known != epoch:
            order = Permutation(len(self._rows), self._seed, epoch)
            self._last = epoch, order
        return self._rows[order[place]]


def shuffled(rows: Sequence[Any], seed: int) -> DrawnRows:
    """Rows in an order of their own for every pass.

    Args:
        rows: with random access.
        seed: below 2^32, see ``shuffle_seed``.
    """
    if len(rows) <= LARGEST_OF_GRAIN:
        return grain.MapDataset.source(rows).shuffle(seed=seed).repeat()
    return _PermutedRows(rows, seed)


def _mixed(value: int, key: int) -> int:
    """32 bits that depend on all of a value and of a key (the finalizer of MurmurHash3, shortened)."""
    value = (value ^ key) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 32) * 0xC4CEB9FE1A85EC53 & _MASK
    return value >> 32
