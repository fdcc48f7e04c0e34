"""What follows from a config and its devices: mesh, layout, optimizer, and the compiled functions of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from k2jax.batch import PackedBatch, pack_row
from k2jax.config.schema import Config
from k2jax.losses import NLL, Loss
from k2jax.parallel.batches import BatchSharding
from k2jax.parallel.gradients import make_schedule
from k2jax.parallel.layout import make_layout
from k2jax.parallel.mesh import make_mesh
from k2jax.parallel.resharding import CheckpointLayout
from k2jax.params import VISION, abstract
from k2jax.train.state import TrainState, init_state, make_optimizer, state_shardings
from k2jax.train.step import (
    GradientSums,
    StepMetrics,
    add_sums,
    make_apply_step,
    make_eval_step,
    make_gradient_step,
    make_train_step,
    no_sums,
)


class Program:
    """The training program of a config on its devices, which may be abstract (ahead-of-time compilation).

    Attributes:
        config: the experiment.
        mesh, layout, optimizer: see their modules.
        schedule: the pipeline's table, or None.
        shardings: of the state, a TrainState of NamedShardings.
        step: ``(state, batch [M, B, S]) -> (state, StepMetrics)``, one jitted program; the state is donated.
        update: ``(state, parts) -> (state, StepMetrics)``: the step of a batch in parts ``[M, B, S]`` of one shape, at
            least one, as ``batch_sharding().put`` makes them; the state is donated. Reinforcement learning has another
            number of parts in every update, so that there gradients are added up part by part, and what the optimizer
            does with them is a program of its own; nothing is compiled anew. All other stages have one part, and
            ``step``, which is 8 % faster at nano's size: it keeps no sums of gradients.
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
        self.update = self._in_parts() if config.stage == "rl" else self._in_one
        self.evaluate = jax.jit(make_eval_step(config, self.layout, self.loss), out_shardings=everywhere)

    def init(self) -> TrainState:
        """The state before the first step, on the devices."""
        return jax.jit(lambda: init_state(self.config, self.optimizer, self.layout), out_shardings=self.shardings)()

    def _in_one(self, state: TrainState, parts: Sequence[PackedBatch]) -> tuple[TrainState, StepMetrics]:
        [batch] = parts
        return self.step(state, batch)

    def _in_parts(self) -> Callable[[TrainState, Sequence[PackedBatch]], tuple[TrainState, StepMetrics]]:
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        placed = GradientSums(everywhere, everywhere, self.layout.shardings(self.layout.storage), everywhere)
        denominators = jax.jit(self.loss.denominators, out_shardings=everywhere)
        gradient_step = make_gradient_step(self.config, self.layout, self.loss)
        apply_step = make_apply_step(self.config, self.optimizer, self.layout)
        apply = jax.jit(apply_step, donate_argnums=0, out_shardings=(self.shardings, everywhere))

        empty = jax.jit(functools.partial(no_sums, gradient_step), out_shardings=placed)

        @functools.partial(jax.jit, donate_argnums=0, out_shardings=placed)
        def add_part(sums: GradientSums, *arguments: Any) -> GradientSums:
            return add_sums(sums, gradient_step(*arguments))

        def update(state: TrainState, parts: Sequence[PackedBatch]) -> tuple[TrainState, StepMetrics]:
            counts = [denominators(part.targets) for part in parts]
            total = jax.tree.map(lambda *values: sum(values[1:], values[0]), *counts)
            sums = empty(state.params, parts[0], total)
            for part in parts:
                sums = add_part(sums, state.params, part, total)
            return apply(state, sums)

        return update

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
        if VISION not in self.layout.specs:
            return state, sharding.abstract(row)
        batch = sharding.abstract(row.replace(media=row.tokens))  # a number for each token
        return state, batch.replace(patches=sharding.abstract_patches())
