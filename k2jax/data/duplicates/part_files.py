"""Files of the work on duplicates: written under other names and renamed, read without the memory that maps would take.

A file that exists is whole, so work that was stopped is taken up where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import hashlib
import json
import os
from pathlib import Path
import shutil
from typing import Any

import numpy as np

from k2jax.files.array_file import write_array
from k2jax.files.atomic import replacing

DOCUMENT = np.dtype(
    [("words", "<u8"), ("characters", "<u8"), ("digest", "<u8", 2), ("numbers", "<u8"), ("id_end", "<u8")]
)
"""What is kept of a document: how many words and characters it has, hashes of its words and of those with digits, and
where its name ends."""
PAIR = np.dtype([("late", "<i8"), ("early", "<i8")])
"""Positions of two documents; ``late`` comes later in the order in which documents are kept."""
EDGE = np.dtype([*PAIR.descr, ("words", "<u8"), ("score", "<f8"), ("kind", "u1")])
"""A verified pair, with the words of its later document."""
REMOVAL = np.dtype([("position", "<i8"), ("keeper", "<i8"), ("score", "<f8"), ("kind", "u1")])
"""A removed document and the kept one that it duplicates."""


def key_of(*facts: Any) -> str:
    """A name for files that are a function of the facts, which JSON can hold."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def save(path: Path, array: np.ndarray) -> None:
    """Writes an array in NumPy's format, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        write_array(file, array)


def rows_between(path: Path, column: str, begin: int, end: int) -> np.ndarray:
    """Rows of a saved array that is sorted by a column, from one value of it to before another."""
    rows = np.load(path, mmap_mode="r")
    first, last = np.searchsorted(rows[column], [begin, end])
    return np.array(rows[first:last])


@contextlib.contextmanager
def making_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``path`` at the end of the block; where another process was faster, its stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
