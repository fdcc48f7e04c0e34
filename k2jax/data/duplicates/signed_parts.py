"""All signed parts as one sequence of documents, read from disk by position or by ranges of band keys."""

from __future__ import annotations

from collections.abc import Iterator
import functools
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from k2jax.data.duplicates.part_files import DOCUMENT
from k2jax.data.duplicates.settings import PERMUTATIONS

DIGESTS = 0
"""Number of the runs by digest, before those of the bands."""


class _Run(NamedTuple):
    """A sorted run: its files, where it lies in them [entries], its length and the position of its first document."""

    folder: Path
    begin: int
    length: int
    position: int


class SignedParts:
    """Documents of signed parts; the position of a document is its number among all.

    Attributes:
        starts: int64 ``[parts + 1]``, position of the first document of each part.
        compared: documents that have a signature and are long and short enough to be compared by it.
    """

    def __init__(self, folder: Path, names: tuple[str, ...], bands: int):
        self._made_of = (folder, names, bands)
        self._folders = [folder / name for name in names]
        self._runs: list[list[_Run]] = [[] for _ in range(bands + 1)]
        starts, self.compared = [0], 0
        for part in self._folders:
            entry, position = 0, starts[-1]
            for documents, compared in json.loads((part / "part.json").read_text())["blocks"]:
                for number, runs in enumerate(self._runs):
                    length = documents if number == DIGESTS else compared
                    runs.append(_Run(part, entry, length, position))
                    entry += length
                position += documents
                self.compared += compared
            starts.append(position)
        self.starts = np.array(starts, np.int64)

    def __reduce__(self):
        return signed_parts, self._made_of

    def __len__(self) -> int:
        """Number of documents."""
        return int(self.starts[-1])

    def merged(self, run: int, part: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
        """One of equal ranges of all keys, merged from the sorted runs of all blocks.

        Args:
            run: ``DIGESTS``, or 1 + the number of a band.
            part: number of the range.
            parts: how many ranges there are, a power of two.

        Returns:
            Sorted keys, uint64, and the positions of their documents, ascending among equal keys.
        """
        span = 2**64 // parts
        keys, positions = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for each in self._runs[run]:
            of_run = _entries(each.folder / "keys.bin", "<u8")[each.begin : each.begin + each.length]
            first = np.searchsorted(of_run, np.uint64(part * span))
            last = np.searchsorted(of_run, np.uint64((part + 1) * span)) if part + 1 < parts else each.length
            keys.append(np.array(of_run[first:last]))
            order = _entries(each.folder / "order.bin", "<u4")[each.begin + int(first) : each.begin + int(last)]
            positions.append(order + np.int64(each.position))
        keys, positions = np.concatenate(keys), np.concatenate(positions)
        by_key = np.argsort(keys, kind="stable")
        return keys[by_key], positions[by_key]

    def documents(self, positions: np.ndarray) -> np.ndarray:
        """What is kept of documents, in ``part_files.DOCUMENT``."""
        return self._gather("documents.bin", DOCUMENT, positions)

    def signatures(self, positions: np.ndarray) -> np.ndarray:
        """Signatures of documents."""
        return self._gather("signatures.bin", np.dtype(("<u4", (PERMUTATIONS,))), positions)

    def ids(self, positions: np.ndarray) -> list[str]:
        """Names of documents."""
        found: list[str] = [""] * len(positions)
        for part, places, local in self._by_part(positions):
            ends = _entries(self._folders[part] / "documents.bin", DOCUMENT)["id_end"]
            ids = _entries(self._folders[part] / "ids.bin", "u1")
            begins = np.where(local, ends[local - 1], 0).tolist()
            for place, begin, end in zip(places.tolist(), begins, ends[local].tolist(), strict=True):
                found[place] = ids[begin:end].tobytes().decode()
        return found

    def part_of(self, positions: np.ndarray) -> np.ndarray:
        """Numbers of the parts that hold documents."""
        return np.searchsorted(self.starts, positions, "right") - 1

    def _gather(self, name: str, dtype: np.dtype, positions: np.ndarray) -> np.ndarray:
        rows = np.empty(len(positions), dtype)
        for part, places, local in self._by_part(positions):
            rows[places] = _entries(self._folders[part] / name, dtype)[local]
        return rows

    def _by_part(self, positions: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """For each part with some of the positions: its number, their places in the list, their numbers in the part."""
        order = np.argsort(positions, kind="stable")
        of = self.part_of(positions[order])
        for part in np.unique(of).tolist():
            places = order[np.searchsorted(of, part) : np.searchsorted(of, part, "right")]
            yield part, places, positions[places] - self.starts[part]


@functools.lru_cache(2)
def signed_parts(folder: Path, names: tuple[str, ...], bands: int) -> SignedParts:
    """Signed parts, kept between the tasks of a process."""
    return SignedParts(folder, names, bands)


def _entries(path: Path, dtype: np.dtype | str) -> np.ndarray:
    """A file as an array of which only what is read is in memory; empty files cannot be mapped."""
    if not path.stat().st_size:
        return np.empty((0, *np.dtype(dtype).shape), np.dtype(dtype).base)
    return np.memmap(path, dtype, "r").view(np.ndarray)  # whose rows are read several times faster
