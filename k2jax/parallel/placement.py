"""Batches on the mesh: which rows of a batch this process reads, and how they become one global array."""

from __future__ import annotations

import jax
from jax.sharding import Mesh, NamedSharding
import numpy as np

from k2jax.batch import PackedBatch
from k2jax.config.schema import Config
from k2jax.parallel.mesh import batch_partition, rows_per_micro_batch


class Placement:
    """Rows of a batch, cut into micro-batches and spread over devices, as ``mesh.batch_partition`` says.

    Micro-batch m is rows ``[m R, (m + 1) R)`` of the batch, R being ``rows_per_micro_batch``; rows from
    ``config.train.batch_size`` on are padding.

    Attributes:
        rows: numbers of the rows that this process reads, ascending.
    """

    def __init__(self, config: Config, mesh: Mesh):
        """Raises UserError when there are too few rows."""
        self._sharding = NamedSharding(mesh, batch_partition(mesh))
        self._shape = (config.train.micro_batches, rows_per_micro_batch(config, mesh), config.data.sequence_length)
        numbers = np.arange(self._shape[0] * self._shape[1]).reshape(self._shape[:2])
        here = self._sharding.addressable_devices_indices_map(self._shape).values()
        self.rows = np.unique(np.concatenate([numbers[index[:2]].ravel() for index in here])).tolist()
        self._place_of = {row: place for place, row in enumerate(self.rows)}

    def put(self, batch: PackedBatch) -> PackedBatch:
        """``[len(rows), S]`` on the host to global arrays ``[micro-batches, rows, S]``."""
        return jax.tree.map(self._put, batch)

    def _put(self, array: np.ndarray) -> jax.Array:
        micro_batches, rows, _ = self._shape

        def piece(index: tuple[slice, ...]) -> np.ndarray:
            own = [range(size)[cut] for size, cut in zip((micro_batches, rows), index, strict=False)]
            places = [[self._place_of[m * rows + row] for row in own[1]] for m in own[0]]
            return array[np.array(places)][..., index[2]]

        return jax.make_array_from_callback(self._shape, self._sharding, piece)
