"""Exact comparison of proposed pairs, by the sets of shingles of both documents."""

from __future__ import annotations

from collections.abc import Iterator
import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from k2jax.data.duplicates.part_files import EDGE, making_folder, save
from k2jax.data.duplicates.settings import DuplicateSettings
from k2jax.data.duplicates.shingles import GRAM, SHINGLE, distinct, shared, shingles
from k2jax.data.duplicates.signatures import DocumentPart
from k2jax.data.duplicates.signed_parts import SignedParts
from k2jax.data.duplicates.words import HashedTexts, batches, hash_words

EXACT, NEAR, CONTAINED = 1, 2, 3
"""Kinds of duplicates: the same words, a similar set of shingles, a text that a longer one holds."""
KINDS = {EXACT: "exact", NEAR: "near", CONTAINED: "contained"}
_KEPT = 4096  # sets of documents that a task keeps in memory


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
    if settings.numbers and (len(late.numbers) or len(early.numbers)):
        if _jaccard(late.numbers, early.numbers) < settings.numbers:
            return 0, 0.0
    sizes = sorted((len(late.shingles), len(early.shingles)))
    if sizes[0] >= settings.threshold * sizes[1]:
        if (similarity := _jaccard(late.shingles, early.shingles)) >= settings.threshold:
            return NEAR, similarity
    if settings.contained:
        share = shared(late.grams, early.grams) / min(len(late.grams), len(early.grams))
        if share >= settings.contained:
            return CONTAINED, share
    return 0, 0.0


def _jaccard(one: np.ndarray, other: np.ndarray) -> float:
    common = shared(one, other)
    return common / (len(one) + len(other) - common)


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
            ends, at = [], 0
            with (temporary / "sets.bin").open("wb") as file:
                for sets in _sets_of_part(part, (positions - begin).tolist()):
                    for each in sets:
                        file.write(each.tobytes())
                        at += len(each)
                        ends.append(at)
            save(temporary / "positions.npy", positions)
            save(temporary / "ends.npy", np.array(ends, np.int64).reshape(-1, 3))
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
    """Sets of documents from disk, of which some are kept in memory."""

    def __init__(self, folder: Path, signed: SignedParts):
        self._folder, self._signed = folder, signed
        self._of_part = functools.lru_cache(64)(self._open)
        self.of = functools.lru_cache(_KEPT)(self._read)

    def _open(self, part: int) -> tuple[np.ndarray, np.ndarray, Path]:
        folder = self._folder / f"sets-{part}"
        return np.load(folder / "positions.npy"), np.load(folder / "ends.npy", mmap_mode="r"), folder / "sets.bin"

    def _read(self, position: int) -> DocumentSets:
        positions, ends, path = self._of_part(int(self._signed.part_of(np.array([position]))[0]))
        row = int(np.searchsorted(positions, position))
        begin = int(ends[row - 1, 2]) if row else 0
        first, second, end = ends[row].tolist()
        hashes = np.fromfile(path, np.uint64, end - begin, offset=8 * begin)
        return DocumentSets(*np.split(hashes, [first - begin, second - begin]))


def verify_pairs(
    number: int, *, pairs: list[Path], sets: Path, signed: SignedParts, folder: Path, settings: DuplicateSettings
) -> int:
    """Verifies the pairs of a file; returns how many are duplicates.

    Writes the edges between them, in keep order of their later documents.
    """
    path = folder / f"edges-{number}.npy"
    if not path.exists():
        of = _Sets(sets, signed).of
        found = []
        for late, early in np.load(pairs[number]).tolist():
            kind, score = compare(of(late), of(early), settings)
            if kind:
                found.append((late, early, 0, score, kind))
        edges = np.array(found, EDGE)
        edges["words"] = signed.documents(edges["late"])["words"]
        save(path, edges[np.lexsort((edges["early"], edges["late"], -edges["words"].astype(np.int64)))])
    return len(np.load(path, mmap_mode="r"))
