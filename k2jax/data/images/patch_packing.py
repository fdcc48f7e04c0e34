"""Packing of images and clips of any size into rows of patches of one static shape (NaViT, arXiv:2307.06304).

A chunk, an image or up to four frames of a clip, lies in one row, because attention does not leave a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import itertools
from typing import NamedTuple

import numpy as np

from k2jax.batch import PatchBatch
from k2jax.data.best_fit import best_fit
from k2jax.errors import UserError

GROUP = 4
"""Patches that become one feature: 2 x 2 of a frame."""


class PatchChunk(NamedTuple):
    """An image, or consecutive frames of a clip.

    Attributes:
        pixels: float32 ``[frames * height * width, 3 * patch * patch]``, patches frame by frame and row by row; none
            of an image that is not decoded, which has a place but is in no row that is computed here.
        grid: frames, and the height and width of each in patches; height and width are even.
    """

    pixels: np.ndarray
    grid: tuple[int, int, int]

    @property
    def patches(self) -> int:
        """Patches of all frames."""
        frames, height, width = self.grid
        return frames * height * width

    @property
    def features(self) -> int:
        """Features that stand for the chunk among the tokens."""
        _, height, width = self.grid
        return height * width // GROUP


class PackedChunks(NamedTuple):
    """Chunks in rows.

    Attributes:
        batch: the rows.
        features: for each chunk, int32 ``[features]``: the groups of ``batch``, counted over all rows, whose features
            stand for it, row by row of the image.
    """

    batch: PatchBatch
    features: list[np.ndarray]


def fill_rows(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Distributes chunks over rows by ``best_fit``.

    Args:
        sizes: patches of each chunk.
        length: patches of a row.

    Returns:
        The chunks' indices, row by row.

    Raises:
        UserError: a chunk is larger than a row.
    """
    if largest := max((size for size in sizes if size > length), default=0):
        raise UserError(f"an image or chunk of video has {largest:,} patches, and a row holds {length:,}")
    return best_fit(sizes, length)


def pack_chunks(chunks: Sequence[PatchChunk], *, rows: int, length: int, patch: int) -> PackedChunks:
    """Packs chunks into rows; what no chunk fills is padding, which nothing attends to.

    Args:
        chunks: images and chunks of video.
        rows: rows of the batch.
        length: patches of a row, a multiple of 4.
        patch: side of a patch [pixels].

    Raises:
        UserError: they do not fit.
        ValueError: the length is no multiple of 4, or a chunk is malformed.
    """
    filled = fill_rows([chunk.patches for chunk in chunks], length)
    if len(filled) > rows:
        raise UserError(f"{len(chunks)} images and chunks of video need {len(filled)} rows of {length:,}, not {rows}")
    return pack_rows(chunks, filled + [[]] * (rows - len(filled)), length=length, patch=patch)


def pack_rows(
    chunks: Sequence[PatchChunk], filled: Sequence[Sequence[int]], *, length: int, patch: int
) -> PackedChunks:
    """Packs chunks into the rows that are chosen for them.

    Args:
        chunks: images and chunks of video.
        filled: the chunks' indices, row by row; each is in one row, which holds them.
        length: patches of a row, a multiple of 4.
        patch: side of a patch [pixels].

    Raises:
        ValueError: the length is no multiple of 4, or a chunk is malformed.
    """
    batch = fill_pixels(dict(enumerate(chunks)), filled, length=length, patch=patch)
    starts = chunk_starts([chunk.patches for chunk in chunks], filled, length)
    return PackedChunks(batch, [chunk_groups(*pair) for pair in zip(starts, (c.grid for c in chunks), strict=True)])


def chunk_starts(sizes: Sequence[int], filled: Sequence[Sequence[int]], length: int) -> list[int]:
    """The first patch of each chunk, counted over all rows.

    Args:
        sizes: patches of each chunk.
        filled: the chunks' indices, row by row.
        length: patches of a row.
    """
    starts = [0] * len(sizes)
    for row, indices in enumerate(filled):
        ends = itertools.accumulate((sizes[index] for index in indices), initial=row * length)
        for index, start in zip(indices, ends, strict=False):
            starts[index] = start
    return starts


def chunk_groups(start: int, grid: tuple[int, int, int]) -> np.ndarray:
    """The groups whose features stand for a chunk, row by row of the image, int32 ``[features]``.

    Args:
        start: the chunk's first patch, counted over all rows.
        grid: as in ``PatchChunk``.
    """
    frames, height, width = grid
    return (start // GROUP + np.arange(0, frames * height * width // GROUP, frames)).astype(np.int32)


def fill_pixels(
    chunks: Mapping[int, PatchChunk], filled: Sequence[Sequence[int]], *, length: int, patch: int
) -> PatchBatch:
    """Rows of patches; arguments as of ``pack_rows``, but that chunks which are in none of the rows may be missing.

    Raises:
        ValueError: the length is no multiple of 4, or a chunk is malformed.
    """
    if length % GROUP:
        raise ValueError(f"rows of {length} patches do not divide into groups of {GROUP}")
    batch = empty_rows(len(filled), length, patch)
    for row, indices in enumerate(filled):
        start = 0
        for index in indices:
            _place(batch, row, start, chunks[index])
            start += chunks[index].patches
    return batch


def empty_rows(rows: int, length: int, patch: int) -> PatchBatch:
    """Rows of padding alone."""
    own = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    zero, one = np.zeros((rows, length), np.int32), np.ones((rows, length), np.int32)
    return PatchBatch(
        pixels=np.zeros((rows, length, 3 * patch * patch), np.float32),
        start=own,
        exit=own.copy(),
        y=zero,
        x=zero.copy(),
        height=one,
        width=one.copy(),
        time=zero.copy(),
        frames=np.ones((rows, length // GROUP), np.int32),
    )


def padding_waste(batch: PatchBatch) -> float:
    """Share of the patches of all rows, empty ones included, that are padding."""
    return float(np.mean(batch.start == batch.exit))


def _place(batch: PatchBatch, row: int, start: int, chunk: PatchChunk) -> None:
    """Writes a chunk into a row."""
    frames, height, width = chunk.grid
    if height % 2 or width % 2 or len(chunk.pixels) != chunk.patches:
        raise ValueError(f"{len(chunk.pixels)} patches do not make a chunk of {chunk.grid} in groups of 2 x 2")
    order = _group_order(frames, height, width)
    stop = start + chunk.patches
    part = row, slice(start, stop)
    batch.pixels[part] = chunk.pixels[order]
    batch.start[part], batch.exit[part] = start, stop
    batch.height[part], batch.width[part] = height, width
    batch.y[part], batch.x[part] = order // width % height, order % width
    batch.time[part] = 0 if frames == 1 else order // (height * width) + 1
    batch.frames[row, start // GROUP : stop // GROUP] = frames


def _group_order(frames: int, height: int, width: int) -> np.ndarray:
    """Patches in the order of PatchBatch, int ``[frames * height * width]``, numbered frame by frame, row by row."""
    number = np.arange(frames * height * width).reshape(frames, height // 2, 2, width // 2, 2)
    return number.transpose(1, 3, 0, 2, 4).ravel()
