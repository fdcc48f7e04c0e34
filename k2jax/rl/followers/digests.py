"""A hash of what a program is given: two processes compare it before either issues the program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import functools
from typing import Any

import jax
import numpy as np
import xxhash

from k2jax.batch import PackedBatch


def digest_of(values: Any) -> bytes:
    """16 bytes of NumPy arrays with their types and shapes, and of everything else by its ``repr``.

    Args:
        values: a tree of them.
    """
    digest = xxhash.xxh3_128()
    for leaf in jax.tree.leaves(values):
        if isinstance(leaf, np.ndarray):
            digest.update(_kind(leaf.dtype, leaf.shape))
            digest.update(np.ascontiguousarray(leaf))
        else:
            digest.update(repr(leaf).encode())
    return digest.digest()


@functools.lru_cache(1024)
def _kind(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    return f"{dtype.str}{shape}".encode()


def digest_of_rows(rows: Sequence[PackedBatch]) -> bytes:
    """Of rows ``[S]`` of an update; of images their grids, since a process may decode those of its own rows alone."""
    return digest_of([(row.replace(patches=None), _grids(row.patches)) for row in rows])


def _grids(patches: Iterable[Any] | None) -> list[tuple[int, ...]]:
    return [tuple(chunk.grid) for chunk in patches or ()]
