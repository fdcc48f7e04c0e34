"""The policy: the engine on the training's devices, and the weights that the trainer brings to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from pathlib import Path
from typing import Any

from k2jax import processes
from k2jax.config.schema import Config
from k2jax.inference import Engine
from k2jax.rl.broadcast.store_source import published_source
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine, store_folder
from k2jax.rl.sync.weight_sync import WeightSync, colocated_engine
from k2jax.train.program import Program


class Policy:
    """An engine that samples with the trainer's weights.

    Attributes:
        engine: of the policy.
    """

    def __init__(self, program: Program, workdir: Path, opened: contextlib.ExitStack):
        """The policy of a run; its weights come with the first ``push``. ``opened`` frees what is published."""
        self.engine = colocated_engine(program, program.config.rl.rollout)
        self._sync = WeightSync(program, self.engine)
        self._publish = opened.enter_context(weight_publisher(program.config, workdir, self.engine))
        self._record: dict[str, float] = {}

    def check(self, version: int) -> None:
        """Raises StaleWeightsError where the engine has other weights than those of ``version``."""
        self._sync.check(version)

    def push(self, params: Any, version: int) -> None:
        """Brings the trainer's weights to the engine, and publishes them."""
        synced = self._sync.push(params, version)
        speed = synced.bytes / synced.seconds / 1e9
        self._record = {"sync_seconds": synced.seconds, "sync_gb_per_second": speed}
        self._publish(version)

    def record(self) -> dict[str, float]:
        """Metrics of the last ``push``."""
        return self._record


@contextlib.contextmanager
def weight_publisher(config: Config, workdir: Path, engine: Engine) -> Iterator[Callable[[int], None]]:
    """A function that keeps the engine's weights in shared memory under a version, where ``rl.rollout.publish`` is set.

    Each of several processes keeps what lies on its devices. What is kept is freed when the run ends by itself. It
    outlives a trainer that is killed: engines in other processes go on from there.

    Raises:
        UserError: another run publishes under the same workdir.
    """
    if not config.rl.rollout.publish:
        yield lambda version: None
        return
    several = processes.count() > 1
    store = CheckpointEngine(store_folder(workdir, processes.index() if several else None), keeps_before=several)
    with published_source(config, workdir, store.folder):
        yield lambda version: store.publish(engine.weights.leaves(), version)
    store.remove()
