"""The verifier of tasks in Harbor's format: the rewards that their scripts have written."""

from __future__ import annotations

from k2jax.agents.environment import OUTCOME
from k2jax.agents.environments.container import STEPS, STRATEGY
from k2jax.agents.sandbox import Sandbox
from k2jax.agents.task import Task
from k2jax.agents.verifier import Verifier
from k2jax.trajectory import Reward, Trajectory


class HarborVerifier(Verifier):
    """The mean of the steps' rewards, or the last one's; a step that was not reached has 0.

    Parts are the named rewards of a task of one step, and ``step1``, ``step2``, ... of others.
    """

    spec = None

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox | None) -> Reward:
        """The reward of what the environment's scripts said."""
        graded = trajectory.metadata.get(OUTCOME, {}).get("graded", [])
        count = len(task.metadata[STEPS])
        values = [step["reward"] for step in graded] + [0.0] * (count - len(graded))
        value = values[-1] if task.metadata[STRATEGY] == "final" else sum(values) / count
        parts = {f"step{number}": each for number, each in enumerate(values, 1)}
        if count == 1:
            parts = dict(graded[0]["rewards"]) if graded else {}
        reasons = [step["reason"] for step in graded if step["reason"]]
        return Reward(value, parts=parts, info={"reached": len(graded), "reasons": reasons})
