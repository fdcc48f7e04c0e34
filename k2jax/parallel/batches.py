"""Batches on the mesh: which rows of a batch this process reads, and how they become global arrays."""

from __future__ import annotations

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from k2jax.batch import Media, PackedBatch
from k2jax.config.schema import Config
from k2jax.parallel.mesh import batch_partitions, rows_per_micro_batch


class BatchSharding:
    """Rows of a batch, cut into micro-batches and sharded over devices, as ``mesh.batch_partitions`` says.

    Micro-batch m is rows ``[m R, (m + 1) R)`` of the batch, R being ``rows_per_micro_batch``; rows from
    ``config.train.batch_size`` on are padding.

    Attributes:
        rows: numbers of the rows that this process reads, ascending.
        total_rows: rows of a batch over all processes, rows of padding included.
        devices: of the mesh, over which rows of patches are sharded.
    """

    def __init__(self, config: Config, mesh: Mesh):
        """Raises UserError when there are too few rows."""
        self._mesh = mesh
        self._micro_batches, self._rows = config.train.micro_batches, rows_per_micro_batch(config, mesh)
        shape = (self._micro_batches, self._rows, config.data.sequence_length)
        numbers = np.arange(self._micro_batches * self._rows).reshape(shape[:2])
        tokens = PackedBatch(*[jax.ShapeDtypeStruct(shape, np.int32)] * 4, targets={})
        sharding = NamedSharding(mesh, batch_partitions(mesh, tokens).tokens)
        local = sharding.addressable_devices_indices_map(shape).values()
        self.total_rows, self.devices = numbers.size, mesh.size
        self.rows = np.unique(np.concatenate([numbers[index[:2]].ravel() for index in local])).tolist()
        self._position = {row: position for position, row in enumerate(self.rows)}

    def put(self, batch: PackedBatch) -> PackedBatch:
        """Leaves ``[len(rows), ...]`` on the host to global arrays ``[micro-batches, rows, ...]``.

        Of ``media``, every process has all patches; their rows go over all devices.
        """
        if isinstance(batch.media, Media):
            tokens = self.put(batch.replace(media=batch.media.feature))
            patches = jax.tree.map(self._put_patches, batch.media.patches)
            return tokens.replace(media=Media(patches, tokens.media))
        shaped = self.abstract(jax.tree.map(lambda leaf: leaf[0], batch))
        return jax.tree.map(self._put, batch, shaped)

    def abstract(self, row: PackedBatch) -> PackedBatch:
        """ShapeDtypeStructs, with shardings, of the global arrays of a batch whose rows look like ``row``."""
        shape = (self._micro_batches, self._rows)
        shaped = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*shape, *leaf.shape), leaf.dtype), row)

        def sharded(leaf: jax.ShapeDtypeStruct, partition: PartitionSpec) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(self._mesh, partition))

        return jax.tree.map(sharded, shaped, batch_partitions(self._mesh, shaped))

    def _put_patches(self, array: np.ndarray) -> jax.Array:
        sharding = NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names))
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

    def _put(self, array: np.ndarray, shaped: jax.ShapeDtypeStruct) -> jax.Array:
        def piece(index: tuple[slice, ...]) -> np.ndarray:
            micro_batches, rows = (range(size)[cut] for size, cut in zip(shaped.shape, index[:2], strict=False))
            positions = [[self._position[m * self._rows + row] for row in rows] for m in micro_batches]
            return array[np.array(positions)][(..., *index[2:])]

        return jax.make_array_from_callback(shaped.shape, shaped.sharding, piece)
