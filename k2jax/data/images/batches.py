"""Batches with images: rows of tokens as they are, and the patches of all their images on all devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from k2jax.batch import Media, PackedBatch, stack_rows
from k2jax.config.schema import VisionConfig
from k2jax.data.images.packing import PatchChunk, pack_rows
from k2jax.data.images.placement import PatchRows, place_chunks
from k2jax.data.images.rows import ImageRow, PlannedRow

Row = PackedBatch | PlannedRow


class ImageBatches:
    """Makes batches with ``Media`` of one static shape, whatever images there are.

    Every process decodes the images of all rows, because any of them may be computed on its devices.

    Args:
        shape: rows of patches.
        vision: the tower.
    """

    def __init__(self, shape: PatchRows, vision: VisionConfig):
        self.shape, self._vision = shape, vision

    def batch(
        self, row_of: Callable[[int], Row], local_rows: Sequence[int], key: tuple[int, int] | None
    ) -> PackedBatch:
        """A batch.

        Args:
            row_of: row ``i`` of all ``shape.token_rows`` of them; planned, or of text alone.
            local_rows: the rows of tokens that this process keeps.
            key: seed and step, of which augmentation is a function; None augments nothing.

        Returns:
            NumPy arrays: tokens ``[local rows, S]``, patches ``[shape.rows, shape.length]``.
        """
        rows = [row_of(number) for number in range(self.shape.token_rows)]
        return self.stack(
            [row.build(key) if isinstance(row, PlannedRow) else _without(row) for row in rows], local_rows
        )

    def stack(self, rows: Sequence[ImageRow], local_rows: Sequence[int]) -> PackedBatch:
        """A batch from all rows of tokens; arguments as of ``batch``."""
        own = [[chunk.patches for chunk in row.chunks] for row in rows]
        chunks: list[PatchChunk] = [chunk for row in rows for chunk in row.chunks]
        filled = place_chunks(own, self.shape, self._vision)
        packed = pack_rows(chunks, filled, length=self.shape.length, patch=self._vision.patch)
        ends = np.cumsum([0, *map(len, own)]).tolist()
        placed = [
            _placed(rows[number].feature, packed.features[ends[number] : ends[number + 1]]) for number in local_rows
        ]
        tokens = stack_rows([rows[number].tokens for number in local_rows])
        return tokens.replace(media=Media(packed.batch, np.stack(placed)))


def _without(row: PackedBatch) -> ImageRow:
    return ImageRow(row, [], np.full(row.tokens.shape, -1, np.int32))


def _placed(own: np.ndarray, groups: list[np.ndarray]) -> np.ndarray:
    """From features counted over a row's chunks to groups counted over all rows of patches."""
    table = np.concatenate([np.full(1, -1, np.int32), *groups])
    return table[own + 1]
