"""Shingles: runs of consecutive words as 64-bit numbers, of many texts at once."""

from __future__ import annotations

import numpy as np

from k2jax.data.duplicates.words import HashedTexts

SHINGLE = 5
"""Words of the shingles that documents are compared by."""
GRAM = 3
"""Words of the runs of which a contained document has nearly all in common with its container."""
_BASE, _LAST = np.uint64(0xA0761D6478BD642F), np.uint64(0xE7037ED1A0B428DB)
_PADDING = np.uint64(0x8EBC6AF09C88C6E3)


def mixed(columns: list[np.ndarray]) -> np.ndarray:
    """One 64-bit number for each row of columns of numbers, by a polynomial and a mixing of its bits."""
    result = columns[0].astype(np.uint64)
    for column in columns[1:]:
        result *= _BASE
        result += column
    result ^= result >> np.uint64(32)
    result *= _LAST
    result ^= result >> np.uint64(29)
    return result


def shingles(texts: HashedTexts, size: int = SHINGLE) -> tuple[np.ndarray, np.ndarray]:
    """Shingles of texts in their order, repeated ones too.

    A text of fewer words has one shingle, of its words and padding: it equals no other text's but that of its copies.

    Returns:
        Shingles, uint64 ``[S]``, and where those of each text end, int64 ``[D]``.
    """
    words, ends = texts.words, texts.ends
    lacking = np.maximum(size - np.diff(ends, prepend=0), 0)
    if lacking.any():
        words = np.insert(words, np.repeat(ends, lacking), _PADDING)
        ends = ends + np.cumsum(lacking)
    count = len(words) - size + 1
    if count <= 0:  # no texts
        return np.empty(0, np.uint64), ends
    result = mixed([words[offset : offset + count] for offset in range(size)])
    within = np.ones(count, bool)
    for back in range(1, size):
        within[ends[:-1] - back] = False
    return result[within], ends - (size - 1) * np.arange(1, len(ends) + 1)


def distinct(hashes: np.ndarray) -> np.ndarray:
    """The sorted set of some numbers."""
    hashes = np.sort(hashes)
    fresh = np.ones(len(hashes), bool)
    np.not_equal(hashes[1:], hashes[:-1], out=fresh[1:])
    return hashes[fresh]


def shared(one: np.ndarray, other: np.ndarray) -> int:
    """How many numbers two sorted sets have in common."""
    if len(one) > len(other):
        one, other = other, one
    if not len(one):
        return 0
    return int(np.count_nonzero(other[np.minimum(np.searchsorted(other, one), len(other) - 1)] == one))
