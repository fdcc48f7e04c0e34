"""Batches with images: rows of tokens as they are, and the patches of all their images on all devices.

Where a chunk lies follows from the sizes of all images of a batch, which every process knows. It decodes those alone
that its own devices compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import itertools
import math

import numpy as np

from k2jax.batch import PackedBatch, stack_rows
from k2jax.config.schema import VisionConfig
from k2jax.data.images.image_rows import PlannedRow
from k2jax.data.images.patch_packing import PatchChunk, chunk_groups, chunk_starts, fill_pixels
from k2jax.data.images.placement import PatchRows, place_chunks

Row = PackedBatch | PlannedRow
Grid = tuple[int, int, int]


class ImageBatches:
    """Makes batches with ``Media`` of one static shape, whatever images there are.

    Args:
        shape: rows of patches.
        vision: the tower.
        patch_rows: the rows of patches that this process computes, all by default.
    """

    def __init__(self, shape: PatchRows, vision: VisionConfig, patch_rows: Sequence[int] | None = None):
        self.shape, self._vision = shape, vision
        self._patch_rows = range(shape.rows) if patch_rows is None else patch_rows

    def batch(
        self, row_of: Callable[[int], Row], local_rows: Sequence[int], key: tuple[int, int] | None
    ) -> PackedBatch:
        """A batch.

        Args:
            row_of: row ``i`` of all ``shape.token_rows`` of them; planned, or of text alone.
            local_rows: the rows of tokens that this process keeps.
            key: seed and step, of which augmentation is a function; None augments nothing.

        Returns:
            NumPy arrays: tokens ``[local rows, S]``, patches ``[rows of patches of this process, shape.length]``.
        """
        rows = [row_of(number) for number in range(self.shape.token_rows)]
        grids = [row.grids if isinstance(row, PlannedRow) else [] for row in rows]
        filled = self._placed(grids)
        ours = {chunk for row in self._patch_rows for chunk in filled[row]}
        built: dict[int, PackedBatch] = {}
        chunks: dict[int, PatchChunk] = {}
        kept, first = set(local_rows), 0
        for number, (row, own) in enumerate(zip(rows, grids, strict=True)):
            needed = {chunk for chunk in range(len(own)) if first + chunk in ours}
            if number in kept:
                built[number] = row.build(key, needed) if isinstance(row, PlannedRow) else without_images(row)
                found = {chunk: built[number].patches[chunk] for chunk in needed}
            else:
                found = row.pixels(key, needed) if needed else {}
            chunks |= {first + chunk: patches for chunk, patches in found.items()}
            first += len(own)
        return self._stacked([built[number] for number in local_rows], local_rows, grids, filled, chunks)

    def stack(self, rows: Sequence[PackedBatch], local_rows: Sequence[int]) -> PackedBatch:
        """A batch from all rows of tokens with all their patches; what is returned is as of ``batch``."""
        grids = [[chunk.grid for chunk in row.patches] for row in rows]
        chunks = dict(enumerate(chunk for row in rows for chunk in row.patches))
        return self._stacked([rows[number] for number in local_rows], local_rows, grids, self._placed(grids), chunks)

    def _placed(self, grids: Sequence[Sequence[Grid]]) -> list[list[int]]:
        return place_chunks([[math.prod(grid) for grid in own] for own in grids], self.shape, self._vision)

    def _stacked(
        self,
        local: Sequence[PackedBatch],
        local_rows: Sequence[int],
        grids: Sequence[Sequence[Grid]],
        filled: Sequence[Sequence[int]],
        chunks: Mapping[int, PatchChunk],
    ) -> PackedBatch:
        """This process's rows of tokens and of patches.

        Args:
            local: rows of tokens with their images.
            local_rows: their numbers.
            grids: of the chunks of all rows of tokens.
            filled: chunks of all rows of patches.
            chunks: those with pixels, by their numbers.
        """
        every = [grid for own in grids for grid in own]
        starts = chunk_starts([math.prod(grid) for grid in every], filled, self.shape.length)
        ends = list(itertools.accumulate(map(len, grids), initial=0))
        placed = [
            _placed(row.media, [chunk_groups(starts[c], every[c]) for c in range(ends[number], ends[number + 1])])
            for row, number in zip(local, local_rows, strict=True)
        ]
        ours = [filled[row] for row in self._patch_rows]
        patches = fill_pixels(chunks, ours, length=self.shape.length, patch=self._vision.patch)
        tokens = stack_rows([row.replace(media=None, patches=None) for row in local])
        return tokens.replace(media=np.stack(placed), patches=patches)


def without_images(row: PackedBatch) -> PackedBatch:
    """A row of text as one whose images are none."""
    return row.replace(media=np.full(row.tokens.shape, -1, np.int32), patches=[])


def _placed(own: np.ndarray, groups: list[np.ndarray]) -> np.ndarray:
    """From features counted over a row's chunks to groups counted over all rows of patches."""
    table = np.concatenate([np.full(1, -1, np.int32), *groups])
    return table[own + 1]
