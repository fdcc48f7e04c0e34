"""Which documents are kept: each is removed if, and only if, it has a verified edge to one that is already kept.

Documents are visited in keep order: the one with more words first, of equally many the earlier one in the order given.
Removal is never transitive: a document that is like a removed one, and like no kept one, is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import heapq
import itertools
from pathlib import Path

import numpy as np

from k2jax.data.duplicates.part_files import PAIR, REMOVAL, rows_between, save
from k2jax.data.duplicates.verification import EXACT

_AT_ONCE = 1 << 12  # edges of a file that are in memory
_RUN = 1 << 16  # removals that are sorted together


def decide(edges: list[Path], documents: int, folder: Path) -> tuple[list[Path], list[tuple[int, int]]]:
    """Visits all documents with edges, of the best scores first where one has several to kept documents.

    Memory is a byte for each document.

    Args:
        edges: files of verified pairs, each in keep order of the later document.
        documents: how many there are.
        folder: receives the removals, in files that are sorted by position.

    Returns:
        Files of removals, and pairs of a kept document and a removed one that it is like.
    """
    removed, files, stranded = np.zeros(documents, bool), [], []
    run: list[tuple[int, int, float, int]] = []

    def write() -> None:
        files.append(folder / f"removals-{len(files)}.npy")
        save(files[-1], np.sort(np.array(run, REMOVAL), order="position"))
        run.clear()

    merged = heapq.merge(*map(_edges_of, edges))
    for late, group in itertools.groupby(merged, key=lambda edge: edge[1]):
        of_document = list(group)
        kept = [edge for edge in of_document if not removed[edge[2]]]
        if not kept:
            stranded += [(late, edge[2]) for edge in of_document]
            continue
        removed[late] = True
        _, _, keeper, score, kind = max(kept, key=lambda edge: (edge[3], -edge[2]))
        run.append((late, keeper, score, kind))
        if len(run) == _RUN:
            write()
    write()
    return files, stranded


def _edges_of(path: Path) -> Iterator[tuple[int, int, int, float, int]]:
    """Edges of a file as tuples that sort in keep order: -words, late, early, score, kind."""
    rows = np.load(path, mmap_mode="r")
    for at in range(0, len(rows), _AT_ONCE):
        for late, early, words, score, kind in rows[at : at + _AT_ONCE].tolist():
            yield -words, late, early, score, kind


def pairs_with_keepers(stranded: Iterable[tuple[int, int]], removals: list[Path]) -> np.ndarray:
    """Pairs of kept documents and the keepers of removed ones that they are like, which no band had to propose.

    Returns:
        Pairs in the order of their positions, each once, in ``part_files.PAIR``.
    """
    stranded = np.array(list(stranded), np.int64).reshape(-1, 2)
    of = removals_of(stranded[:, 1], removals)
    pairs = np.empty(len(stranded), PAIR)
    pairs["late"], pairs["early"] = stranded[:, 0], of["keeper"]
    return np.unique(pairs)


def removals_of(positions: np.ndarray, removals: list[Path]) -> np.ndarray:
    """The removals of documents, in ``part_files.REMOVAL``; ``kind`` is 0 for those that are kept."""
    found = np.zeros(len(positions), REMOVAL)
    for path in removals:
        rows = np.load(path, mmap_mode="r")
        if len(rows):
            places = np.minimum(np.searchsorted(rows["position"], positions), len(rows) - 1)
            hit = rows["position"][places] == positions
            found[hit] = rows[places[hit]]
    return found


def removals_between(begin: int, end: int, copies: list[Path], removals: list[Path]) -> np.ndarray:
    """All removals of a range of documents, sorted by position.

    A copy is kept or removed with the first of its documents: where that is removed, its keeper is the copy's too.

    Args:
        begin: position of the first document.
        end: behind the last one.
        copies: files of exact copies and the first of their documents.
        removals: files of removals.
    """
    exact = np.concatenate([rows_between(path, "late", begin, end) for path in copies])
    of_copies = removals_of(exact["early"], removals)
    alone = of_copies["kind"] == 0
    of_copies["keeper"][alone], of_copies["score"][alone], of_copies["kind"][alone] = exact["early"][alone], 1.0, EXACT
    of_copies["position"] = exact["late"]
    rows = np.concatenate([of_copies, *(rows_between(path, "position", begin, end) for path in removals)])
    return np.sort(rows, order="position")
