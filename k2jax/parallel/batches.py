"""Batches on the mesh: which rows of a batch this process reads, and how they become global arrays."""

from __future__ import annotations

import functools
import math

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from k2jax.batch import PackedBatch, PatchBatch
from k2jax.config.schema import Config
from k2jax.data.images.patch_packing import empty_rows
from k2jax.data.images.placement import PatchRows
from k2jax.parallel.mesh import batch_partitions, rows_per_micro_batch


class BatchSharding:
    """Rows of a batch, cut into micro-batches and sharded over devices, as ``mesh.batch_partitions`` says.

    Micro-batch m is rows ``[m R, (m + 1) R)`` of the batch, R being ``rows_per_micro_batch``; rows from
    ``config.train.batch_size`` on are padding.

    Attributes:
        rows: numbers of the rows that this process reads, ascending.
        total_rows: rows of a batch over all processes, rows of padding included.
    """

    def __init__(self, config: Config, mesh: Mesh):
        """Raises UserError when there are too few rows."""
        self._mesh, self._config = mesh, config
        self._micro_batches, self._rows = config.train.micro_batches, rows_per_micro_batch(config, mesh)
        shape = (self._micro_batches, self._rows, config.data.sequence_length)
        numbers = np.arange(self._micro_batches * self._rows).reshape(shape[:2])
        tokens = PackedBatch(*[jax.ShapeDtypeStruct(shape, np.int32)] * 4, targets={})
        sharding = NamedSharding(mesh, batch_partitions(mesh, tokens).tokens)
        local = sharding.addressable_devices_indices_map(shape).values()
        self.total_rows = numbers.size
        self.rows = np.unique(np.concatenate([numbers[index[:2]].ravel() for index in local])).tolist()
        self._position = {row: position for position, row in enumerate(self.rows)}

    @property
    def patch_rows(self) -> PatchRows:
        """The static shape of a step's images: ``data.images.rows`` of the rows of tokens, as many on each device."""
        images, devices = self._config.data.images, self._mesh.size
        rows = math.ceil(self.total_rows * images.rows / devices) * devices
        return PatchRows(self.total_rows, rows, images.patches, devices, images.each)

    @functools.cached_property
    def local_patch_rows(self) -> list[int]:
        """Numbers of the rows of patches that this process's devices compute, ascending."""
        shape = (self.patch_rows.rows,)
        local = self._over_all_devices.addressable_devices_indices_map(shape).values()
        return np.unique(np.concatenate([np.arange(*shape)[index] for index in local])).tolist()

    def put(self, batch: PackedBatch) -> PackedBatch:
        """Leaves ``[len(rows), ...]`` on the host to global arrays ``[micro-batches, rows, ...]``.

        Of ``patches``, a process has the rows ``local_patch_rows``.
        """
        rows, patches = batch.replace(patches=None), jax.tree.map(self._put_patches, batch.patches)
        shaped = self.abstract(jax.tree.map(lambda leaf: leaf[0], rows))
        return jax.tree.map(self._put, rows, shaped).replace(patches=patches)

    def abstract(self, row: PackedBatch) -> PackedBatch:
        """ShapeDtypeStructs, with shardings, of the global arrays of a batch whose rows look like ``row``."""
        shape = (self._micro_batches, self._rows)
        shaped = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*shape, *leaf.shape), leaf.dtype), row)

        def sharded(leaf: jax.ShapeDtypeStruct, partition: PartitionSpec) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(self._mesh, partition))

        return jax.tree.map(sharded, shaped, batch_partitions(self._mesh, shaped))

    def abstract_patches(self) -> PatchBatch:
        """ShapeDtypeStructs, with shardings, of the patches of a batch."""
        shape = self.patch_rows
        one = empty_rows(1, shape.length, self._config.model.vision.patch)

        def make(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((shape.rows, *leaf.shape[1:]), leaf.dtype, sharding=self._over_all_devices)

        return jax.tree.map(make, one)

    @property
    def _over_all_devices(self) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names))

    def _put_patches(self, array: np.ndarray) -> jax.Array:
        shape, first = (self.patch_rows.rows, *array.shape[1:]), {row: i for i, row in enumerate(self.local_patch_rows)}

        def piece(index: tuple[slice, ...]) -> np.ndarray:
            start = first[index[0].start or 0]  # the rows of a device follow each other
            return array[start : start + len(range(shape[0])[index[0]])]

        return jax.make_array_from_callback(shape, self._over_all_devices, piece)

    def _put(self, array: np.ndarray, shaped: jax.ShapeDtypeStruct) -> jax.Array:
        def piece(index: tuple[slice, ...]) -> np.ndarray:
            micro_batches, rows = (range(size)[cut] for size, cut in zip(shaped.shape, index[:2], strict=False))
            positions = [[self._position[m * self._rows + row] for row in rows] for m in micro_batches]
            return array[np.array(positions)][(..., *index[2:])]

        return jax.make_array_from_callback(shaped.shape, shaped.sharding, piece)
