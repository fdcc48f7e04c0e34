"""What follows from a config and its devices: mesh, layout, optimizer, and the compiled functions of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from k2jax.batch import PackedBatch
from k2jax.config.schema import Config
from k2jax.parallel.forms import SavedForm
from k2jax.parallel.gradients import make_schedule
from k2jax.parallel.layout import make_layout
from k2jax.parallel.mesh import batch_partition, make_mesh, rows_per_micro_batch
from k2jax.parallel.placement import Placement
from k2jax.params import abstract
from k2jax.train.state import TrainState, init_state, make_optimizer, state_shardings
from k2jax.train.step import make_eval_step, make_train_step


class Program:
    """The training program of a config on devices that need not be here: they may be a topology's.

    Attributes:
        config: the experiment.
        mesh, layout, optimizer: see their modules.
        schedule: the pipeline's table, or None.
        shardings: of the state, a TrainState of NamedShardings.
        step: ``(state, batch [M, B, S]) -> (state, StepMetrics)``, jitted; the state is donated.
        evaluate: ``(params, batch) -> (sum of weighted nll, sum of weights)``, jitted.
    """

    def __init__(self, config: Config, devices: Sequence[Any] | None = None):
        """Over all devices by default. Raises UserError when the config does not fit them."""
        self.config = config
        self.mesh = make_mesh(config, devices)
        self.layout = make_layout(config, self.mesh)
        self.schedule = make_schedule(config, self.layout)
        self.optimizer = make_optimizer(config, self.layout)
        self.shardings = state_shardings(self.optimizer, self.layout)
        step = make_train_step(config, self.optimizer, self.layout)
        everywhere = NamedSharding(self.mesh, PartitionSpec())  # every process reads the metrics
        self.step = jax.jit(step, donate_argnums=0, out_shardings=(self.shardings, everywhere))
        self.evaluate = jax.jit(make_eval_step(config, self.layout), out_shardings=everywhere)

    def init(self) -> TrainState:
        """The state before the first step, on the devices."""
        return jax.jit(lambda: init_state(self.config, self.optimizer, self.layout), out_shardings=self.shardings)()

    def placement(self) -> Placement:
        """How batches come onto the devices."""
        return Placement(self.config, self.mesh)

    def saved_form(self) -> SavedForm:
        """How checkpoints hold the state."""
        return SavedForm(self.optimizer, self.layout)

    def abstract(self) -> tuple[TrainState, PackedBatch]:
        """ShapeDtypeStructs, with shardings, of the arguments of ``step``: to compile it without memory or devices."""
        params = abstract(self.layout.specs)
        state = TrainState(
            jax.ShapeDtypeStruct((), jnp.int32),
            params,
            jax.eval_shape(self.optimizer.init, params),
            jax.ShapeDtypeStruct((), jnp.bool_),
        )
        place = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
        rows = rows_per_micro_batch(self.config, self.mesh)
        shape = (self.config.train.micro_batches, rows, self.config.data.sequence_length)
        sharding = NamedSharding(self.mesh, batch_partition(self.mesh))
        field = lambda dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)  # noqa: E731
        batch = PackedBatch(*(field(jnp.int32) for _ in range(4)), field(jnp.float32))
        return jax.tree.map(place, state, self.shardings), batch
