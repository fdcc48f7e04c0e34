"""Log-probabilities of packed rows under any weights, by one forward pass on the training's mesh.

Whatever needs the trainer's own log-probabilities outside of an update, or those of another model, asks here. All
executors of a step (one device, pipelines, expert, tensor and context parallelism) run it: the pass is a loss whose
only term is a table ``[rows, S]``, which micro-batches and devices fill in together as they add up any other term.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax import Array
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from k2jax.batch import PackedBatch, TokenScores
from k2jax.config.schema import Config
from k2jax.losses import Loss, Metrics, Rows
from k2jax.losses.targets import token_temperature
from k2jax.model.selection_noise import noise_of_scoring
from k2jax.parallel.batches import BatchSharding
from k2jax.parallel.decoupled import make_sums
from k2jax.parallel.layout import make_layout
from k2jax.parallel.mesh import rows_per_micro_batch
from k2jax.rl.packing.images import batch_of, image_batches
from k2jax.rl.packing.rows import padding_like
from k2jax.train.state import compute_dtype
from pallas_kernels.vma import vary_tree


class ScoringTargets(NamedTuple):
    """What the pass is told of a batch.

    Attributes:
        row: int32 ``[B, 1]``, the number of the row in the whole batch.
        temperature: float32 ``[B, S]``, as of ``PolicyTargets``.
    """

    row: Array | np.ndarray
    temperature: Array | np.ndarray


class TokenTable(Loss):
    """The log-probability of every token of a batch as a term ``logprob`` ``[rows, length]`` instead of a number."""

    def __init__(self, rows: int, length: int):
        """A table of all rows of a batch, over micro-batches and devices."""
        self._shape = (rows, length)

    def denominators(self, targets: ScoringTargets) -> dict[str, Array]:
        """1: entries are no means."""
        return {"logprob": jnp.ones(())}

    def __call__(
        self, scores: TokenScores, targets: ScoringTargets, rows: Rows
    ) -> dict[str, tuple[Array | None, Metrics]]:
        """The table with the entries of these rows, 0 elsewhere."""
        empty = vary_tree(jnp.zeros(self._shape, jnp.float32), like=(scores.logprob, targets.row, rows.index_S))
        return {"logprob": (empty.at[targets.row, rows.index_S[None]].add(scores.logprob), {})}

    def temperature(self, targets: ScoringTargets) -> Array:
        """At which each token was sampled, 1 elsewhere."""
        return token_temperature(targets)


class ScoringPass:
    """The compiled forward pass of a model on a mesh.

    Two sets of weights that are equal bit for bit give the same rows equal scores bit for bit: they run through one
    program, beside the same neighbours. The head's logits exist chunk by chunk, never ``[B, S, V]``.

    Attributes:
        layout: how the weights are stored that ``score_rows`` takes.
    """

    def __init__(self, config: Config, mesh: Mesh, slots: float = 1.0):
        """Of ``config.model`` for batches of ``config.train.batch_size`` rows of ``config.data.sequence_length``.

        Args:
            config: the experiment, whose model may be another one than the trained.
            mesh: of the training.
            slots: room in the exchange of experts, over a device's tokens; 1 drops no row, and
                ``config.parallel.expert_slots`` drops rows as a training step does.

        Raises:
            UserError: the model does not divide over the mesh.
        """
        self.layout, self._rows = make_layout(config, mesh), config.train.batch_size
        self._sharding, self._length = BatchSharding(config, mesh), config.data.sequence_length
        rows = config.train.micro_batches * rows_per_micro_batch(config, mesh)
        dtype = compute_dtype(config.train.compute_dtype, self.layout.platform)
        self._images = image_batches(self._sharding, config.model.vision)
        sums = make_sums(config, self.layout, TokenTable(rows, self._length), slots)
        # The cast is a program of its own, so that weights stored in another dtype meet the same pass.
        self._to_compute = jax.jit(lambda params: self.layout.to_compute(_as_float32(params), dtype))
        everywhere = NamedSharding(mesh, PartitionSpec())

        def score(params: Any, batch: PackedBatch) -> Array:
            with noise_of_scoring():
                return sums(params, batch).terms["logprob"]

        self._score = jax.jit(score, out_shardings=everywhere)

    def score_rows(self, params: Any, rows: Sequence[PackedBatch], needed: np.ndarray | None = None) -> np.ndarray:
        """Computes the log-probability of every token given what it may see, at the temperature of its sampling.

        Args:
            params: weights in any float dtype, as ``layout`` stores them; they are only read.
            rows: rows ``[S]`` of NumPy arrays whose targets hold ``temperature``, the same ones in every process. Where
                they hold ``experts``, those are replayed.
            needed: bool ``[len(rows)]``, the rows that the caller reads; None is all. Batches without any are left out.

        Returns:
            Float32 ``[len(rows), S]`` in every process [nats]; 0 where a token has no parent, and in batches left out.
        """
        weights, table = self._to_compute(params), np.zeros((len(rows), self._length), np.float32)
        for start in range(0, len(rows), self._rows):
            part = rows[start : start + self._rows]
            if needed is not None and not needed[start : start + self._rows].any():
                continue
            table[start : start + len(part)] = jax.device_get(self._score(weights, self._put(part)))[: len(part)]
        return table

    def _put(self, rows: Sequence[PackedBatch]) -> PackedBatch:
        local = self._sharding.rows
        batch = batch_of(rows, padding_like(rows[0]), local, self._images)
        targets = ScoringTargets(np.array(local, np.int32)[:, None], batch.targets.temperature)
        return self._sharding.put(batch.replace(targets=targets))


def _as_float32(params: Any) -> Any:
    """The dtype of master weights, in which some are also computed with."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
