"""What turns a task into calls of a model."""

from __future__ import annotations

from typing import Protocol

from k2jax.agents.environment import Environment
from k2jax.agents.episode import Rollout
from k2jax.client import Sampling


class Scaffold(Protocol):
    """A coroutine over a rollout; one is made for every episode."""

    async def run(self, rollout: Rollout, environment: Environment, sampling: Sampling) -> None:
        """Runs the episode from where its trajectory ends, and sets the trajectory's status.

        It is called again after a failure: what the trajectory records has happened, and the environment is rebuilt by
        replay.

        Args:
            rollout: the episode.
            environment: not reset yet.
            sampling: of every message; its ``seed`` is the run's.

        Raises:
            InfrastructureError: the environment failed.
            UserError: the task needs what is not there.
        """
        ...
