"""What one process has of an engine that joins a run: all of it, or with other processes its devices' part.

In every process the engine is opened and takes its weights by the same commands; see ``k2jax.rl.followers`` for what
else process 0 tells the others. Each process takes the weights of its own devices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh
import numpy as np

from k2jax import processes
from k2jax.agents.collect.engine_states import EngineRole
from k2jax.checkpoint import run_config
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.inference import Engine
from k2jax.inference.mesh import make_engine_mesh
from k2jax.inference.roles import empty_role
from k2jax.model import cast_params
from k2jax.model.vision import multimodal_specs
from k2jax.params import abstract
from k2jax.rl.broadcast.peers import parse_address, read_key
from k2jax.rl.broadcast.received_weights import ReceivedWeights
from k2jax.rl.broadcast.store_source import KEY_FILE
from k2jax.rl.engines.run_record import RunRecord
from k2jax.rl.followers.commands import Commands
from k2jax.rl.followers.digests import digest_of
from k2jax.rl.sync.checkpoint_engine import store_folder
from k2jax.serve.following import CheckpointWeights, StoredWeights, WeightSource
from k2jax.text.constrained import Grammars
from k2jax.text.tokenizer import load_tokenizer
from k2jax.trajectory.steps import POLICY

_NEW, _OLD, _BROKEN = range(3)
"""Which weights a process has behind a command to take new ones."""


class EnginePart:
    """See the module's text.

    Args:
        workdir: of the run.
        commands: of the engine's processes.

    Attributes:
        take: has all processes take the version that all of them find, and returns its number and its checksum.
        engine: as clients of this process use it.
        source: where this process takes its weights from.
    """

    engine: Engine
    source: WeightSource

    def __init__(self, workdir: Path, commands: Commands):
        self._workdir, self._commands, self._own = workdir, commands, None
        self._open_all = commands.joint("open", self._open)
        self.take = commands.joint("weights", self._take)

    def open(self, record: RunRecord, role: EngineRole) -> None:
        """Makes the engine of a run in all processes, in the place of the one that there is."""
        self._open_all({"record": record.for_all_processes(), "role": vars(role)})

    def _open(self, values: dict[str, Any]) -> None:
        record, role, config = RunRecord(**values["record"]), EngineRole(**values["role"]), run_config(self._workdir)
        self._commands.check("the configuration", lambda: digest_of(config))
        if self._own is not None:
            self.source.close()
            self._own.release()  # before there is another one
        if role.role == POLICY:
            self._own = _make_engine(config, record)
            self.source = self._source_of(record)
        else:
            self._own, self.source = _role_engine(config, record, role)
        self._own.grammars = Grammars(lambda: load_tokenizer(self._workdir / "tokenizer"), config.model.vocab)
        self.engine = self._commands.engine(self._own)

    def _take(self, _: None = None) -> tuple[int, str]:
        """See ``take``.

        Raises:
            UserError: in all processes, where one of them could not read its part; as long as one has lost its old
                weights, all are without.
        """
        problem = ""
        try:
            version, leaves = self.source.load()
            self._own.update_params(leaves, version)
        except UserError as error:
            problem = str(error)
        complete = self._own.weights.complete
        states = _of_all(_BROKEN if not complete else _OLD if problem else _NEW)
        if (states != _NEW).any():
            self._own.weights.complete = bool((states == _OLD).all())
            raise UserError(problem or "another process of the engine could not read its part of the weights")
        return version, self._own.weights.digest()

    def _source_of(self, record: RunRecord) -> WeightSource:
        """This machine's memory, where it has all weights and all of the engine, or the processes of the run."""
        weights = self._own.weights
        if _of_all(record.is_here).all() and len(record.weights) < 2:
            several = processes.count() > 1
            return StoredWeights(store_folder(self._workdir), weights.target if several else None)
        check_reachable(record, self._workdir)
        addresses = [parse_address(text, "weights") for text in record.weights]
        return ReceivedWeights(addresses, read_key(self._workdir / KEY_FILE), weights, say)


def say(text: str) -> None:
    """Prints a line."""
    print(text, flush=True)


def check_reachable(record: RunRecord, workdir: Path) -> None:
    """Raises UserError where a run does not take engines of other machines."""
    if not record.weights:
        raise UserError(f"the run of {workdir} takes engines of its own machine alone; set config.rl.engines.listen")


def _make_engine(config: Config, record: RunRecord) -> Engine:
    """An engine of the policy of a run, which waits for its weights."""
    specs, rollout, dtype = multimodal_specs(config.model), config.rl.rollout, jax.numpy.dtype(record.dtype)
    return Engine(
        config.model,
        jax.eval_shape(lambda params: cast_params(params, specs, dtype), abstract(specs)),
        slots=rollout.slots,
        max_length=rollout.max_length,
        version=-1,
        mesh=_mesh_of(config),
    )


def _role_engine(config: Config, record: RunRecord, role: EngineRole) -> tuple[Engine, CheckpointWeights]:
    """An engine of a frozen role on the same devices, which waits for its weights, and where it takes them from.

    Raises:
        UserError: as of ``empty_role``, or the run has no such role.
    """
    if role.role not in config.rl.roles:
        names = ", ".join([POLICY, *sorted(config.rl.roles)])
        raise UserError(f"the run has no role {role.role!r}; its engines are of {names}")
    opened, engine = empty_role(config, role.role, role.checkpoint, _mesh_of(config), jax.numpy.dtype(record.dtype))
    return engine, CheckpointWeights(opened, role.checkpoint)


def _mesh_of(config: Config) -> Mesh | None:
    """The devices of an engine; None is the default one.

    Raises:
        UserError: they are not those of all processes.
    """
    rollout, there = config.rl.rollout, jax.device_count()
    used = rollout.data * rollout.expert
    if processes.count() > 1 and used != there:
        raise UserError(
            f"the engine's {processes.count()} processes have {there} devices together, and the run has "
            f"config.rl.rollout.data {rollout.data} x expert {rollout.expert}; start as many processes as have {used}"
        )
    return None if used == 1 else make_engine_mesh(rollout.data, rollout.expert)


def _of_all(value: int) -> np.ndarray:
    """What every process of the engine says ``[P]``."""
    if processes.count() == 1:
        return np.array([value])
    return multihost_utils.process_allgather(np.array(value, np.int32))
