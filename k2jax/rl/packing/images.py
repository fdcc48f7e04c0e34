"""The images of rows: each image of a row once, and which of its features stands for each token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from k2jax.batch import PackedBatch, stack_rows
from k2jax.config.schema import VisionConfig
from k2jax.data.images.batches import ImageBatches, without_images
from k2jax.data.images.patch_packing import PatchChunk
from k2jax.inference.media import PlacedChunk
from k2jax.parallel.batches import BatchSharding


class ImageTable:
    """The images of a row that is being filled. What several of its paths show is there once.

    Attributes:
        media: int32 ``[S]``, as of ``PackedBatch``.
        patches: the images and chunks of video over which it counts.
    """

    def __init__(self, length: int):
        """For a row of so many tokens."""
        self.media = np.full(length, -1, np.int32)
        self.patches: list[PatchChunk] = []
        self._first: dict[bytes, int] = {}  # feature of each image, by its content
        self._features = 0

    def add(self, media: Sequence[PlacedChunk], index_T: np.ndarray) -> None:
        """Adds the images of a path whose tokens are at ``index_T [T]`` in the row."""
        for placed in media:
            if placed.digest not in self._first:
                self._first[placed.digest] = self._features
                self._features += placed.chunk.features
                self.patches.append(placed.chunk)
            first = self._first[placed.digest]
            self.media[index_T[placed.start : placed.stop]] = first + np.arange(placed.chunk.features)


def image_batches(sharding: BatchSharding, vision: VisionConfig) -> ImageBatches | None:
    """What makes batches with patches for a training's devices; None for a model of text."""
    return ImageBatches(sharding.patch_rows, vision, sharding.local_patch_rows) if vision.layers else None


def batch_of(
    rows: Sequence[PackedBatch],
    padding: PackedBatch,
    local_rows: Sequence[int],
    images: ImageBatches | None = None,
) -> PackedBatch:
    """Rows as a batch ``[B, S]`` of this process's rows.

    Args:
        rows: rows ``[S]`` of the batch over all processes, the same ones in every process.
        padding: fills the batch up.
        local_rows: numbers of the rows that this process reads.
        images: of a model with vision, see ``image_batches``.
    """
    of = lambda number: rows[number] if number < len(rows) else padding  # noqa: E731
    if images is None:
        return stack_rows([of(number) for number in local_rows])
    every = map(of, range(images.shape.token_rows))
    return images.stack([without_images(row) if row.patches is None else row for row in every], local_rows)
