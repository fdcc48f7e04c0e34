"""The tool ``delegate``: a sub-agent with the same tools works on a part of the task, in an episode of its own."""

from __future__ import annotations

from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.agents.toolsets.sub_agents import SubAgents
from k2jax.agents.toolsets.types import ToolError, Workplace


class DelegateTools(FunctionTools):
    """Sub-agents, as tools of an agent: its last message is the result; what it sampled is a trajectory of its own.

    One that the infrastructure failed fails the agent's episode, too.

    Args:
        depth: see ``SubAgents``, as all that follows.
        steps: of a sub-agent.
        most: sub-agents of an episode.
        role: who answers as a sub-agent.
    """

    def __init__(self, depth: int = 1, steps: int = 8, most: int = 8, role: str = ""):
        super().__init__([self.delegate], concurrent=True)  # they are counted before anything is waited for
        self._agents = SubAgents("delegate", depth, steps, most, role)

    async def open(self, workplace: Workplace) -> None:
        """See ``SubAgents.open``."""
        self._agents.open(workplace)

    async def delegate(self, instruction: str) -> str:
        """Gives a part of the task to a sub-agent and returns its answer.

        Args:
            instruction: all that the sub-agent is told.
        """
        (number,) = self._agents.take()
        trajectory = await self._agents.run(number, [{"role": "user", "content": instruction}])
        if trajectory.status == "truncated":
            raise ToolError("the sub-agent has used up its budget without an answer")
        return trajectory.answer
