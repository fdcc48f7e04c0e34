"""What follows from a config and its devices: mesh, layout, optimizer, and the compiled functions of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from k2jax.batch import Media, PackedBatch, pack_row
from k2jax.config.schema import Config
from k2jax.losses import NLL, Loss
from k2jax.parallel.batches import BatchSharding
from k2jax.parallel.gradients import make_schedule
from k2jax.parallel.layout import make_layout
from k2jax.parallel.mesh import make_mesh
from k2jax.parallel.resharding import CheckpointLayout
from k2jax.params import abstract
from k2jax.train.state import TrainState, init_state, make_optimizer, state_shardings
from k2jax.train.step import (
    GradientSums,
    StepMetrics,
    add_sums,
    make_apply_step,
    make_eval_step,
    make_gradient_step,
    make_train_step,
)


class Program:
    """The training program of a config on its devices, which may be abstract (ahead-of-time compilation).

    Attributes:
        config: the experiment.
        mesh, layout, optimizer: see their modules.
        schedule: the pipeline's table, or None.
        shardings: of the state, a TrainState of NamedShardings.
        step: ``(state, batch [M, B, S]) -> (state, StepMetrics)``, jitted; the state is donated.
        evaluate: ``(params, batch) -> (LossShares not divided, their denominators)``, jitted.
    """

    def __init__(self, config: Config, devices: Sequence[Any] | None = None, loss: Loss | None = None):
        """Over all devices, with the loss of pretraining, by default.

        Raises:
            UserError: the config does not fit the devices.
        """
        self.config, self.loss = config, loss or NLL()
        self.mesh = make_mesh(config, devices)
        self.layout = make_layout(config, self.mesh)
        self.schedule = make_schedule(config, self.layout)
        self.optimizer = make_optimizer(config, self.layout)
        self.shardings = state_shardings(self.optimizer, self.layout)
        step = make_train_step(config, self.optimizer, self.layout, self.loss)
        everywhere = NamedSharding(self.mesh, PartitionSpec())  # every process reads the metrics
        self.step = jax.jit(step, donate_argnums=0, out_shardings=(self.shardings, everywhere))
        self._gradient_step = make_gradient_step(config, self.layout, self.loss)
        sums = GradientSums(everywhere, everywhere, self.layout.shardings(self.layout.storage), everywhere)
        if config.model.vision.layers:
            sums = sums._replace(vision_max_logit=everywhere)
        self._zero_sums = jax.jit(self._make_zero_sums, out_shardings=sums)
        self._add_part = jax.jit(self._make_add_part, donate_argnums=1, out_shardings=sums)
        apply_step = make_apply_step(config, self.optimizer, self.layout)
        self._apply = jax.jit(apply_step, donate_argnums=0, out_shardings=(self.shardings, everywhere))
        self._denominators = jax.jit(self.loss.denominators, out_shardings=everywhere)
        self.evaluate = jax.jit(make_eval_step(config, self.layout, self.loss), out_shardings=everywhere)

    def init(self) -> TrainState:
        """The state before the first step, on the devices."""
        return jax.jit(lambda: init_state(self.config, self.optimizer, self.layout), out_shardings=self.shardings)()

    def step_in_parts(self, state: TrainState, parts: Sequence[PackedBatch]) -> tuple[TrainState, StepMetrics]:
        """``step`` for a batch of any number of parts ``[M, B, S]`` of one shape, without compiling anew.

        Gradients are added up part by part, and the optimizer's update is a program of its own.

        Args:
            state: it is donated.
            parts: at least one; as ``batch_sharding().put`` makes them.
        """
        denominators = [self._denominators(part.targets) for part in parts]
        total = jax.tree.map(lambda *values: sum(values[1:], values[0]), *denominators)
        sums = self._zero_sums(state.params, parts[0], total)
        for part in parts:
            sums = self._add_part(state.params, sums, part, total)
        return self._apply(state, sums)

    def _make_zero_sums(self, params: Any, batch: PackedBatch, denominators: dict[str, Any]) -> GradientSums:
        shapes = jax.eval_shape(self._gradient_step, params, batch, denominators)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        nothing_seen = jnp.full_like(zeros.stats.max_logit, -jnp.inf)
        if zeros.vision_max_logit is not None:
            zeros = zeros._replace(vision_max_logit=jnp.full_like(zeros.vision_max_logit, -jnp.inf))
        return zeros._replace(stats=zeros.stats._replace(max_logit=nothing_seen))

    def _make_add_part(
        self, params: Any, sums: GradientSums, part: PackedBatch, denominators: dict[str, Any]
    ) -> GradientSums:
        return add_sums(sums, self._gradient_step(params, part, denominators))

    def batch_sharding(self) -> BatchSharding:
        """How batches are sharded over the devices."""
        return BatchSharding(self.config, self.mesh)

    def checkpoint_layout(self) -> CheckpointLayout:
        """How checkpoints lay out the state."""
        return CheckpointLayout(self.optimizer, self.layout)

    def abstract(self, row: PackedBatch | None = None) -> tuple[TrainState, PackedBatch]:
        """ShapeDtypeStructs, with shardings, of the arguments of ``step``: to compile it without memory or devices.

        Args:
            row: a row ``[S]`` whose targets are those of the loss; by default a row of pretraining.
        """
        params = abstract(self.layout.specs)
        state = TrainState(
            jax.ShapeDtypeStruct((), jnp.int32),
            params,
            jax.eval_shape(self.optimizer.init, params),
            jax.ShapeDtypeStruct((), jnp.bool_),
        )
        shard = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
        row = row or pack_row([], self.config.data.sequence_length)
        sharding, state = self.batch_sharding(), jax.tree.map(shard, state, self.shardings)
        if not self.config.model.vision.layers:
            return state, sharding.abstract(row)
        batch = sharding.abstract(row.replace(media=row.tokens))  # a number for each token
        return state, batch.replace(media=Media(sharding.abstract_patches(), batch.media))
