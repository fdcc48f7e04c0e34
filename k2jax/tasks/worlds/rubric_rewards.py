"""The reward of a simulated world with a judge's verdict on the rubric as a second term."""

from __future__ import annotations

from k2jax.agents.judges.trajectories import TrajectoryRubric
from k2jax.agents.sandbox import Sandbox
from k2jax.agents.task import Task
from k2jax.tasks.worlds.goals import WorldVerifier
from k2jax.trajectory import Reward, Trajectory

RUBRIC_SHARE = "rubric_share"
"""Key of a task's metadata: the share of the reward that the judge's verdict has, in (0, 1]."""


class WorldAndRubric(TrajectoryRubric):
    """The world's verdict and the judge's, in the shares that the task names."""

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox | None) -> Reward:
        """See ``TrajectoryRubric.score``."""
        share = task.metadata[RUBRIC_SHARE]
        exact = await WorldVerifier().score(task, trajectory, sandbox)
        judged = await super().score(task, trajectory, sandbox)
        parts = {**exact.parts, **{f"rubric/{name}": part for name, part in judged.parts.items()}}
        return Reward((1 - share) * exact.value + share * judged.value, parts, {**exact.info, **judged.info})
