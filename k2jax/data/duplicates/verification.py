"""Exact comparison of proposed pairs, by the sets of shingles of both documents."""

from __future__ import annotations

from collections.abc import Iterator
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from k2jax.data.duplicates.part_files import EDGE, making_folder, save
from k2jax.data.duplicates.settings import DuplicateSettings
from k2jax.data.duplicates.shingles import GRAM, SHINGLE, distinct, shared, shingles
from k2jax.data.duplicates.signatures import DocumentPart
from k2jax.data.duplicates.signed_parts import SignedParts
from k2jax.data.duplicates.words import HashedTexts, batches, hash_words
from k2jax.errors import UserError

EXACT, NEAR, CONTAINED = 1, 2, 3
"""Kinds of duplicates: the same words, a similar set of shingles, a text that a longer one holds."""
KINDS = {EXACT: "exact", NEAR: "near", CONTAINED: "contained"}
_TOGETHER = 1 << 22  # numbers in the sets of the pairs that are compared together


class DocumentSets(NamedTuple):
    """What documents are compared by: sorted sets of 64-bit hashes.

    Attributes:
        shingles: of 5 words.
        grams: of 3 words.
        numbers: words with digits.
    """

    shingles: np.ndarray
    grams: np.ndarray
    numbers: np.ndarray


def sets_of(texts: HashedTexts) -> Iterator[DocumentSets]:
    """Sets of texts that were hashed with their digits."""
    by_size = [shingles(texts, size) for size in (SHINGLE, GRAM)]
    begins = [np.concatenate([[0], ends]) for _, ends in by_size]
    for number, (begin, end) in enumerate(texts.spans()):
        five, three = (
            distinct(hashes[of[number] : of[number + 1]]) for (hashes, _), of in zip(by_size, begins, strict=True)
        )
        yield DocumentSets(five, three, distinct(texts.words[begin:end][texts.digits[begin:end]]))


def compare(late: DocumentSets, early: DocumentSets, settings: DuplicateSettings) -> tuple[int, float]:
    """Compares two documents.

    Returns:
        ``NEAR`` and their Jaccard similarity, ``CONTAINED`` and the share of the smaller one's 3-word runs that the
        other holds, or 0 and 0 for documents that are no duplicates.
    """
    if (
        _contained(late.numbers, early.numbers) < settings.numbers
    ):  # the cheapest question, which settles most pairs of one template
        return 0, 0.0
    similarity = _jaccard(late.shingles, early.shingles)
    if similarity >= settings.threshold and _jaccard(late.numbers, early.numbers) >= settings.numbers:
        return NEAR, similarity
    if settings.contained:
        share = _contained(late.grams, early.grams)
        if share >= settings.contained:
            return CONTAINED, share
    return 0, 0.0


def _jaccard(one: np.ndarray, other: np.ndarray) -> float:
    """Jaccard similarity of two sets; that of two empty ones is 1."""
    common = shared(one, other)
    return common / (len(one) + len(other) - common) if len(one) or len(other) else 1.0


def _contained(one: np.ndarray, other: np.ndarray) -> float:
    """The share of the smaller of two sets that the other holds; of an empty one that is 1."""
    smaller = min(len(one), len(other))
    return shared(one, other) / smaller if smaller else 1.0


def write_sets(item: tuple[int, DocumentPart], *, signed: SignedParts, files: list[Path], folder: Path) -> int:
    """Reads a part again and writes the sets of its documents that are in proposed pairs; returns how many those are.

    Args:
        item: number of the part, and the part.
        signed: the documents.
        files: sorted positions of documents in pairs.
        folder: to write to.
    """
    number, part = item
    path = folder / f"sets-{number}"
    if not path.is_dir():
        begin, end = signed.starts[number : number + 2].tolist()
        wanted = [np.empty(0, np.int64)]
        for file in files:
            positions = np.load(file, mmap_mode="r")
            first, last = np.searchsorted(positions, [begin, end])
            wanted.append(np.array(positions[first:last]))
        positions = np.unique(np.concatenate(wanted))
        with making_folder(path) as temporary:
            lengths: list[int] = []
            with (temporary / "sets.bin").open("wb") as file:
                for sets in _sets_of_part(part, (positions - begin).tolist()):
                    file.write(b"".join([each.tobytes() for each in sets]))
                    lengths += map(len, sets)
            if len(lengths) != 3 * len(positions):
                raise UserError(f"{part.name} has other documents than a moment ago: leave it alone meanwhile")
            save(temporary / "positions.npy", positions)
            save(temporary / "ends.npy", np.cumsum(lengths, dtype=np.int64).reshape(-1, 3))
    return len(np.load(path / "positions.npy", mmap_mode="r"))


def _sets_of_part(part: DocumentPart, wanted: list[int]) -> Iterator[DocumentSets]:
    """Sets of a part's documents with these ascending numbers."""
    if not wanted:
        return
    numbers = set(wanted)
    documents = (document for number, document in enumerate(part.read()) if number in numbers)
    for batch in batches(documents):
        yield from sets_of(hash_words([text for _, text in batch], digits=True))


class _Sets:
    """Sets of documents on disk."""

    def __init__(self, folder: Path, signed: SignedParts):
        self._folder, self._signed = folder, signed

    def of(self, positions: np.ndarray) -> dict[int, DocumentSets]:
        """Reads the sets of documents."""
        found = {}
        for part, of_part, rows, ends in self._by_part(positions):
            begins = np.where(rows, ends[rows - 1, 2], 0)
            with (self._folder / f"sets-{part}" / "sets.bin").open("rb", 0) as file:
                for position, begin, stops in zip(of_part.tolist(), begins.tolist(), ends[rows].tolist(), strict=True):
                    content = os.pread(file.fileno(), 8 * (stops[2] - begin), 8 * begin)
                    hashes, first, second = np.frombuffer(content, np.uint64), stops[0] - begin, stops[1] - begin
                    found[position] = DocumentSets(hashes[:first], hashes[first:second], hashes[second:])
        return found

    def sizes(self, positions: np.ndarray) -> np.ndarray:
        """How many numbers the sets of documents hold together; positions are distinct and ascending."""
        sizes = [np.empty(0, np.int64)]
        for _, _, rows, ends in self._by_part(positions):
            sizes.append(ends[rows, 2] - np.where(rows, ends[rows - 1, 2], 0))
        return np.concatenate(sizes)

    def _by_part(self, positions: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """For each part with some of the ascending positions: number, positions, their rows, ends of all its sets."""
        of = self._signed.part_of(positions)
        for part in np.unique(of).tolist():
            of_part = positions[of == part]
            folder = self._folder / f"sets-{part}"
            rows = np.searchsorted(np.load(folder / "positions.npy", mmap_mode="r"), of_part)
            yield part, of_part, rows, np.load(folder / "ends.npy", mmap_mode="r").view(np.ndarray)


def verify_pairs(
    number: int, *, pairs: list[Path], sets: Path, signed: SignedParts, folder: Path, settings: DuplicateSettings
) -> int:
    """Verifies the pairs of a file; returns how many are duplicates.

    Writes the edges between them, in keep order of their later documents.
    """
    path = folder / f"edges-{number}.npy"
    if not path.exists():
        found, all_sets = [], _Sets(sets, signed)
        for portion in _portions(np.load(pairs[number]), all_sets):
            of = all_sets.of(_documents_of(portion))
            for late, early in portion.tolist():
                kind, score = compare(of[late], of[early], settings)
                if kind:
                    found.append((late, early, 0, score, kind))
        edges = np.array(found, EDGE)
        edges["words"] = signed.documents(edges["late"])["words"]
        save(path, edges[np.lexsort((edges["early"], edges["late"], -edges["words"].astype(np.int64)))])
    return len(np.load(path, mmap_mode="r"))


def _portions(pairs: np.ndarray, sets: _Sets) -> Iterator[np.ndarray]:
    """Pairs in portions whose sets are in memory together; a pair with larger ones is alone."""
    documents = _documents_of(pairs)
    sizes = sets.sizes(documents)
    size = np.cumsum(sum(sizes[np.searchsorted(documents, pairs[name])] for name in ("late", "early")))
    begin = 0
    while begin < len(pairs):
        end = int(np.searchsorted(size, (size[begin - 1] if begin else 0) + _TOGETHER, "right"))
        end = max(begin + 1, end)
        yield pairs[begin:end]
        begin = end


def _documents_of(pairs: np.ndarray) -> np.ndarray:
    return np.unique(np.concatenate([pairs["late"], pairs["early"]]))
