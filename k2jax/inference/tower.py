"""Features of images and chunks of video for an engine: computed once for each content, kept in the host's memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
import functools

import jax
from jax import Array
from jax.sharding import Mesh, PartitionSpec
import numpy as np

from k2jax.batch import PatchBatch
from k2jax.config.schema import ModelConfig
from k2jax.data.images.patch_packing import PatchChunk, fill_rows, pack_chunks
from k2jax.inference.mesh import ROWS, device_count, fetch, place
from k2jax.model.vision import vision_features

SHORTEST_ROW, ROW_TO_FILL = 256, 4096
"""Patches of the shortest row, and of the longest that small images fill together; lengths are powers of two."""


class FeatureStore:
    """Runs the tower, and keeps the features of the contents that were used last.

    Args:
        model: the architecture.
        mesh: of ``inference.mesh.make_engine_mesh``; each device computes rows of its own.
        max_bytes: of features that are kept; those of one call are kept in any case.

    Attributes:
        computed: images and chunks of video that the tower has read.
    """

    def __init__(self, model: ModelConfig, mesh: Mesh | None, max_bytes: int):
        self._model, self._mesh, self._max_bytes = model, mesh, max_bytes
        self._kept: OrderedDict[bytes, np.ndarray] = OrderedDict()  # the least recently used first
        self.computed = 0

    @property
    def bytes(self) -> int:
        """Size of the features that are kept."""
        return sum(features.nbytes for features in self._kept.values())

    def clear(self) -> None:
        """Forgets all features, as when the weights change."""
        self._kept.clear()

    def features(self, params: dict, chunks: Mapping[bytes, PatchChunk]) -> dict[bytes, np.ndarray]:
        """Features of each content, ``[features, d_model]`` in compute dtype.

        Args:
            params: the group ``vision`` of the weights.
            chunks: patches by their digest.
        """
        missing = {digest: chunk for digest, chunk in chunks.items() if digest not in self._kept}
        self._kept.update(self._compute(params, missing))
        for digest in chunks:
            self._kept.move_to_end(digest)
        features = {digest: self._kept[digest] for digest in chunks}
        held = self.bytes
        while held > self._max_bytes and len(self._kept) > len(features):
            held -= self._kept.popitem(last=False)[1].nbytes
        return features

    def _compute(self, params: dict, chunks: Mapping[bytes, PatchChunk]) -> Iterator[tuple[bytes, np.ndarray]]:
        if not chunks:
            return
        digests, sizes = list(chunks), [chunk.patches for chunk in chunks.values()]
        devices = device_count(self._mesh)
        length = row_length(sizes, devices)
        rows = fill_rows(sizes, length)
        for first in range(0, len(rows), devices):
            mine = [digests[i] for i in sorted(i for row in rows[first : first + devices] for i in row)]
            packed = pack_chunks(
                [chunks[digest] for digest in mine], rows=devices, length=length, patch=self._model.vision.patch
            )
            placed = jax.tree.map(lambda array: place(array, ROWS, self._mesh), packed.batch)
            output = fetch(_run_tower(params, placed, config=self._model, mesh=self._mesh))
            flat = output.reshape(-1, output.shape[-1])
            self.computed += len(mine)
            yield from ((digest, flat[groups]) for digest, groups in zip(mine, packed.features, strict=True))


def row_length(sizes: list[int], devices: int) -> int:
    """Patches of the rows that chunks are packed into: of a short list, so that few programs are compiled.

    Args:
        sizes: patches of each chunk.
        devices: each computes one row at a time.
    """
    needed = max(SHORTEST_ROW, *sizes, min(ROW_TO_FILL, -(-sum(sizes) // devices)))
    return 1 << (needed - 1).bit_length()


@functools.partial(jax.jit, static_argnames=("config", "mesh"))
def _run_tower(params: dict, patches: PatchBatch, *, config: ModelConfig, mesh: Mesh | None) -> Array:
    """Features ``[rows, groups, d_model]``; on a mesh every device computes its row."""

    def local(params: dict, patches: PatchBatch) -> Array:
        return vision_features(params, patches, config).features

    if mesh is None:
        return local(params, patches)
    return jax.shard_map(local, mesh=mesh, in_specs=(PartitionSpec(), ROWS), out_specs=ROWS)(params, patches)
