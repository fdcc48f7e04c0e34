"""Copies among digests, in sorted runs on disk: memory does not grow with the corpus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from k2jax.files.array_file import write_numbers

SORTED = 4 << 20
"""Digests that are sorted in memory at a time."""
_ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("position", "<u8")])


def write_copies(digests: Iterable[np.ndarray], folder: Path) -> int:
    """Finds all digests that came before.

    Args:
        digests: uint8 ``[count, 16]`` each, in the order in which the first of equal ones is kept.
        folder: empty; it receives ``copies.bin``, a byte for every digest: 1 where it is a copy.

    Returns:
        Number of copies.
    """
    total, runs = _write_runs(digests, folder)
    with (folder / "copies.bin").open("wb") as file:  # without its zeros a full disk would kill who writes to the map
        for begin in range(0, max(total, 1), SORTED):
            file.write(bytes(min(SORTED, max(total, 1) - begin)))
    flags = np.memmap(folder / "copies.bin", np.uint8, "r+")
    count, ranges = 0, -(-total // SORTED)
    bounds = [number * 2**64 // ranges for number in range(1, ranges)]
    ends = [np.searchsorted(run["high"], np.array(bounds, np.uint64)).tolist() for run in runs]
    for number in range(ranges):
        pieces = [run[([0, *end])[number] : ([*end, len(run)])[number]] for run, end in zip(runs, ends, strict=True)]
        entries = np.sort(np.concatenate(pieces), order=("high", "low", "position"))
        same = (entries["high"][1:] == entries["high"][:-1]) & (entries["low"][1:] == entries["low"][:-1])
        positions = entries["position"][1:][same]
        flags[positions] = 1
        count += len(positions)
    flags.flush()
    return count


def copies_of(folder: Path, sizes: Iterable[int]) -> Iterator[np.ndarray]:
    """What ``write_copies`` found, for each array of digests: the numbers of the copies in it, in order."""
    flags, begin = np.memmap(folder / "copies.bin", np.uint8, "r"), 0
    for size in sizes:
        yield np.flatnonzero(flags[begin : begin + size])
        begin += size


def _write_runs(digests: Iterable[np.ndarray], folder: Path) -> tuple[int, list[np.ndarray]]:
    """Writes sorted runs; returns the number of digests, and the runs as they lie on disk."""
    total, waiting, count, runs = 0, [], 0, []

    def write() -> None:
        entries = np.concatenate(waiting)
        path = folder / f"run-{len(runs)}.bin"
        with path.open("wb") as file:
            write_numbers(file, np.sort(entries, order=("high", "low", "position")))
        runs.append(np.memmap(path, _ENTRY, "r"))

    for each in digests:
        if not len(each):
            continue
        entries = np.empty(len(each), _ENTRY)
        entries["high"], entries["low"] = np.ascontiguousarray(each).view("<u8").T
        entries["position"] = np.arange(total, total + len(each))
        waiting.append(entries)
        total, count = total + len(each), count + len(each)
        if count >= SORTED:
            write()
            waiting, count = [], 0
    if waiting:
        write()
    return total, runs
