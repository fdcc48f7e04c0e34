"""What an answer is worth."""

from __future__ import annotations

from typing import Protocol

from k2jax.env.task import Task
from k2jax.sandbox import Sandbox
from k2jax.trajectory import Reward, Trajectory


class Verifier(Protocol):
    """Scores finished episodes.

    Attributes:
        needs_sandbox: whether ``score`` gets a fresh sandbox. It is made by the verifier's attribute ``spec``, where it
            has one, with the task's image.
    """

    needs_sandbox: bool

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox | None) -> Reward:
        """The reward of an episode.

        Raises:
            InfrastructureError: it could not be found out; the caller tries again and then masks the sample.
        """
        ...
