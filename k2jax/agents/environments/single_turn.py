"""The environment of tasks that one answer ends."""

from __future__ import annotations

from k2jax.agents.environment import Message, Observation, Step
from k2jax.agents.task import Task


class SingleTurn:
    """Shows the instruction; the first answer terminates the episode. It has no state to free."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """The instruction."""
        return Observation(task.instruction)

    async def step(self, action: Message) -> Step:
        """The end of the episode, whatever the answer."""
        return Step(Observation(), terminated=True)

    async def close(self) -> None:
        """Nothing."""
