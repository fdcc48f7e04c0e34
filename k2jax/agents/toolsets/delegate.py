"""The tool ``delegate``: a sub-agent with the same tools works on a part of the task, in an episode of its own."""

from __future__ import annotations

import dataclasses

from k2jax.agents.task import Budget
from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.agents.toolsets.types import ToolError, Workplace
from k2jax.errors import UserError

NAME = "delegate"


class DelegateTools(FunctionTools):
    """Sub-agents, as tools of an agent.

    A sub-agent sees what it is told and nothing else, has the task's environment and other tools, and no verifier. Its
    last message is the result; what it sampled is a trajectory of its own.

    Args:
        depth: levels of sub-agents below the agent; at 1 they work alone.
        steps: of a sub-agent, see ``Budget``.
        most: sub-agents of an episode.
        role: who answers as a sub-agent, of ``config.rl.roles``; empty is whoever answers as the agent.
    """

    def __init__(self, depth: int = 1, steps: int = 8, most: int = 8, role: str = ""):
        if depth < 1 or steps < 1 or most < 1:
            raise UserError("the toolset 'delegate' needs depth, steps and most of at least 1")
        super().__init__([self.delegate], concurrent=True)  # they are counted before anything is waited for
        self._depth, self._steps, self._most, self._role = depth, steps, most, role

    async def open(self, workplace: Workplace) -> None:
        """See ``Toolset.open``.

        Raises:
            UserError: there is no rollout to start sub-agents, or nothing answers as their role.
        """
        if workplace.spawn is None:
            raise UserError("the toolset 'delegate' needs a rollout that starts sub-episodes")
        if self._role and workplace.client_of is None:
            raise UserError(f"the toolset 'delegate role={self._role}' needs a rollout that has roles")
        if self._role:
            workplace.client_of(self._role)
        self._task, self._spawn, self._started = workplace.task, workplace.spawn, 0

    async def delegate(self, instruction: str) -> str:
        """Gives a part of the task to a sub-agent and returns its answer.

        Args:
            instruction: all that the sub-agent is told.
        """
        if self._started == self._most:
            raise ToolError(f"there have been {self._most} sub-agents already")
        self._started += 1
        options = f"depth={self._depth - 1} steps={self._steps} most={self._most}"  # below, the role is the same
        deeper = [f"{NAME} {options}"] if self._depth > 1 else []
        tools = (*(tool for tool in self._task.tools if tool.split()[0] != NAME), *deeper)
        task = dataclasses.replace(
            self._task,
            id=f"{self._task.id}/{self._started}",
            instruction=({"role": "user", "content": instruction},),
            verifier="",
            tools=tools,
            environment=self._task.environment if tools else "single_turn",
            budget=Budget(tokens=self._task.budget.tokens, steps=self._steps),
        )
        trajectory = await self._spawn(task, role=self._role)
        if trajectory.status == "truncated":
            raise ToolError("the sub-agent has used up its budget without an answer")
        return trajectory.answer
