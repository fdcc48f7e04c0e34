"""What a worker process does with a lease: the interface between the manager's protocol and episodes."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple, Protocol

from k2jax.agents.collect.wire_messages import Key
from k2jax.agents.spawning import Spawner
from k2jax.agents.task import Task
from k2jax.trajectory import Trajectory


class Waits(NamedTuple):
    """What an episode waited for, for monitoring [s]."""

    engine: float = 0.0
    environment: float = 0.0
    scoring: float = 0.0


class Runner(Protocol):
    """Runs episodes on the event loop of a worker, within ``async with``. Its maker is called with JSON options."""

    async def __aenter__(self) -> Runner: ...

    async def __aexit__(self, *error: object) -> None: ...

    async def run(
        self, key: Key, kind: str, task: Task, trajectory: Trajectory | None, spawner: Spawner
    ) -> tuple[Trajectory, Waits]:
        """Runs an episode to its end and judges it, or until it pauses.

        Args:
            key: (step, prompt, sample) of the episode.
            kind: class of the task.
            task: what is asked.
            trajectory: an unfinished episode that goes on; None to begin.
            spawner: runs sub-episodes; its ``path`` says which of a task's sub-episodes this is.

        Raises:
            InfrastructureError: a machine failed; the task is tried again, perhaps by another worker.
            UserError: it cannot work; the run ends.
        """
        ...


def make_runner(path: str, options: dict[str, Any]) -> Runner:
    """The runner of a maker ``module:attribute``."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)(**options)
