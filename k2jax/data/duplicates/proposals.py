"""Pairs that may be duplicates: exact copies by their digests, others that are equal in a band of their signatures.

Buckets, the documents with one key in a band, may have very many members: templated text has clusters of a million. In
a bucket of at most ``SMALL`` members all pairs are proposed. In a larger one, a document is proposed with the bucket's
first ``FIRST`` in keep order, and with the ``NEIGHBOURS`` before it in two orders of the members. By the rest of their
signatures, those that are more like each other than the bucket's others lie together; each band sorts by other values.
By their words with digits, those of one template lie together that have the same; long ones may differ in nothing else
that a signature shows. That is linear in the members, whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from k2jax.data.duplicates.part_files import PAIR, rows_between, save
from k2jax.data.duplicates.settings import PERMUTATIONS, DuplicateSettings
from k2jax.data.duplicates.shingles import SHINGLE
from k2jax.data.duplicates.signed_parts import DIGESTS, SignedParts

SMALL, FIRST, NEIGHBOURS = 8, 2, 2
RANGE = 1 << 18
"""Documents of a range of keys, on average: those of a range are in memory together."""
_SORTED_BY = 8  # values of a signature behind a band, by which a large bucket is sorted
_DEVIATIONS = 4  # of the estimate of a similarity, beyond which a pair is not verified: one of 30,000 is lost
_TOGETHER = 1 << 13  # pairs whose signatures are compared at once


def ranges_of(documents: int) -> int:
    """How many ranges of keys there are for so many documents, a power of two."""
    return 1 << max(0, (documents - 1) // RANGE).bit_length()


def propose_copies(number: int, *, signed: SignedParts, ranges: int, folder: Path) -> int:
    """Finds the exact copies of a range of digests; returns how many there are.

    Writes pairs of a copy and the first of its documents in the order given, by position.
    """
    path = folder / f"copies-{number}.npy"
    if not path.exists():
        keys, positions = signed.merged(DIGESTS, number, ranges)
        positions = positions[_repeated(keys)]
        digests = signed.documents(positions)["digest"]
        order = np.lexsort((positions, digests[:, 1], digests[:, 0]))
        positions, digests = positions[order], digests[order]
        same = np.zeros(len(positions), bool)
        same[1:] = (digests[1:] == digests[:-1]).all(1)
        firsts = np.maximum.accumulate(np.where(same, 0, np.arange(len(positions))))
        copies = np.zeros(int(same.sum()), PAIR)
        copies["late"], copies["early"] = positions[same], positions[firsts[same]]
        save(path, np.sort(copies, order="late"))
    return len(np.load(path, mmap_mode="r"))


def propose_pairs(
    item: tuple[int, int], *, signed: SignedParts, ranges: int, folder: Path, settings: DuplicateSettings
) -> int:
    """Proposes the pairs of a range of one band's keys; returns how many there are.

    Args:
        item: numbers of the band and of the range.
        signed: the documents.
        ranges: of keys.
        folder: holds ``copied.npy``, which says of each document whether it is a copy, and receives the pairs.
        settings: of the duplicates.
    """
    band, number = item
    path = folder / f"pairs-{band}-{number}.npy"
    if not path.exists():
        keys, positions = signed.merged(1 + band, number, ranges)
        is_copy = np.load(folder / "copied.npy", mmap_mode="r")[positions]
        keys, positions = keys[~is_copy], positions[~is_copy]
        repeated = _repeated(keys)
        members = _Members(signed, band, settings, keys[repeated], positions[repeated])
        save(path, _unique(list(members.pairs())))
    return len(np.load(path, mmap_mode="r"))


def collect_pairs(number: int, *, ends: list[int], files: list[Path], folder: Path) -> int:
    """Collects the pairs of all bands whose later document lies in a range of positions; returns how many there are.

    Writes them, each once, and the positions of all documents in them.

    Args:
        number: of the range.
        ends: position at which each range ends.
        files: of the pairs.
        folder: to write to.
    """
    path = folder / f"pairs-of-{number}.npy"
    if not path.exists():
        begin, end = ([0, *ends][number], ends[number])
        pairs = _unique([rows_between(file, "late", begin, end) for file in files])
        save(folder / f"documents-of-{number}.npy", np.unique(np.concatenate([pairs["late"], pairs["early"]])))
        save(path, pairs)
    return len(np.load(path, mmap_mode="r"))


class _Members:
    """Documents of all buckets of a range that have at least two, each bucket in keep order."""

    def __init__(
        self, signed: SignedParts, band: int, settings: DuplicateSettings, keys: np.ndarray, positions: np.ndarray
    ):
        self._signed, self._band, self._settings = signed, band, settings
        documents = signed.documents(positions)
        words = documents["words"].astype(np.int64)
        order = np.lexsort((positions, -words, keys))
        self._positions, self._words, keys = positions[order], words[order], keys[order]
        self._numbers = documents["numbers"][order]
        self._starts = np.flatnonzero(np.concatenate([keys[:1] == keys[:1], keys[1:] != keys[:-1]]))
        sizes = np.diff(np.append(self._starts, len(keys)))
        self._bucket = np.repeat(np.arange(len(sizes)), sizes)
        self._large = sizes[self._bucket] > SMALL

    def pairs(self) -> Iterator[np.ndarray]:
        """Proposed pairs that their signatures do not exclude."""
        if not len(self._positions):
            return
        numbers = np.arange(len(self._positions))
        for shift in range(1, SMALL):
            late = numbers[shift:][(self._bucket[shift:] == self._bucket[:-shift]) & ~self._large[shift:]]
            yield self._likely(late, late - shift)
        large = numbers[self._large]
        firsts = self._starts[self._bucket[large]]
        for first in range(FIRST):
            behind = large > firsts + first
            yield self._likely(large[behind], firsts[behind] + first)
        yield from self._neighbours(large)

    def _neighbours(self, large: np.ndarray) -> Iterator[np.ndarray]:
        """Pairs of members of large buckets that lie together by the values behind their band, or by their numbers."""
        columns = (np.arange(_SORTED_BY) + (self._band + 1) * self._settings.rows) % PERMUTATIONS
        parts = [large[at : at + _TOGETHER] for at in range(0, len(large), _TOGETHER)]
        values = [self._signed.signatures(self._positions[part])[:, columns] for part in parts]
        beside = np.concatenate([np.empty((0, _SORTED_BY), np.uint32), *values])
        for keys in (beside.T[::-1], [self._numbers[large]]):
            ordered = large[np.lexsort((large, *keys, self._bucket[large]))]
            for shift in range(1, 1 + NEIGHBOURS):
                one, other = ordered[shift:], ordered[:-shift]
                together = self._bucket[one] == self._bucket[other]
                yield self._likely(np.maximum(one, other)[together], np.minimum(one, other)[together])

    def _likely(self, late: np.ndarray, early: np.ndarray) -> np.ndarray:
        """Pairs of positions of members, less those whose signatures agree too little to be duplicates."""
        kept = [np.empty(0, PAIR)]
        for at in range(0, len(late), _TOGETHER):
            one, other = late[at : at + _TOGETHER], early[at : at + _TOGETHER]
            ours, theirs = (self._signed.signatures(self._positions[each]) for each in (one, other))
            good = self._possible((ours == theirs).mean(1), self._words[one], self._words[other])
            pairs = np.empty(int(good.sum()), PAIR)
            pairs["late"], pairs["early"] = self._positions[one[good]], self._positions[other[good]]
            kept.append(pairs)
        return np.concatenate(kept)

    def _possible(self, estimate: np.ndarray, late: np.ndarray, early: np.ndarray) -> np.ndarray:
        """Which estimates leave it possible that documents of so many words are duplicates.

        A changed word is in three of the 3-word runs that containment counts, and in five shingles.
        """
        settings = self._settings
        allowed = _DEVIATIONS * np.sqrt(settings.threshold * (1 - settings.threshold) / PERMUTATIONS)
        most = np.minimum(1, estimate + allowed)
        possible = most >= settings.threshold
        if settings.contained:
            late, early = (np.maximum(1, words - SHINGLE + 1) for words in (late, early))
            common = most / (1 + most) * (late + early) / np.minimum(late, early)
            possible |= common >= 1 - 5 / 3 * (1 - settings.contained)
        return possible


def _repeated(keys: np.ndarray) -> np.ndarray:
    """Which of sorted keys are there more than once."""
    same = keys[1:] == keys[:-1]
    repeated = np.zeros(len(keys), bool)
    repeated[1:] |= same
    repeated[:-1] |= same
    return repeated


def _unique(portions: list[np.ndarray]) -> np.ndarray:
    """Pairs in the order of their positions, each once."""
    pairs = np.concatenate([np.empty(0, PAIR), *portions])
    pairs = pairs[np.lexsort((pairs["early"], pairs["late"]))]
    fresh = np.ones(len(pairs), bool)
    fresh[1:] = pairs[1:] != pairs[:-1]
    return pairs[fresh]
