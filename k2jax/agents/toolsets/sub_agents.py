"""What toolsets of sub-agents share: how many there may be, who answers in them, and the task of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from k2jax.agents.task import Budget, Task
from k2jax.agents.toolsets.types import USER_TURNS, ToolError, Workplace
from k2jax.errors import UserError
from k2jax.trajectory import Trajectory
from k2jax.trajectory.steps import AGENT

_OWN = (AGENT, USER_TURNS)
"""Metadata that are the spawning agent's alone."""


class SubAgents:
    """Starts the sub-agents of one episode.

    A sub-agent sees what it is told and nothing else, has the task's environment and other tools, and no verifier.

    Args:
        toolset: name of the toolset that starts them; only at a depth of 2 and more a sub-agent has it, too.
        depth: levels of sub-agents below the agent; at 1 they work alone.
        steps: of a sub-agent, see ``Budget``.
        most: sub-agents of an episode.
        role: who answers as a sub-agent, of ``config.rl.roles``; empty is whoever answers as the agent.
        others: further options of the toolset, which that of a sub-agent has, too.

    Raises:
        UserError: a number is below 1.
    """

    def __init__(
        self, toolset: str, depth: int, steps: int, most: int, role: str, others: Mapping[str, object] | None = None
    ):
        if depth < 1 or steps < 1 or most < 1:
            raise UserError(f"the toolset {toolset!r} needs depth, steps and most of at least 1")
        self._toolset, self._depth, self._steps, self._most, self._role = toolset, depth, steps, most, role
        options = {"depth": depth - 1, "steps": steps, "most": most, **(others or {})}  # below, the role is the same
        self._below = " ".join([toolset, *(f"{name}={value}" for name, value in options.items())])

    @property
    def task(self) -> Task:
        """The task of the episode."""
        return self._task

    def open(self, workplace: Workplace) -> None:
        """Begins an episode.

        Raises:
            UserError: there is no rollout to start sub-agents, or nothing answers as their role.
        """
        if workplace.spawn is None:
            raise UserError(f"the toolset {self._toolset!r} needs a rollout that starts sub-episodes")
        if self._role and workplace.client_of is None:
            raise UserError(f"the toolset '{self._toolset} role={self._role}' needs a rollout that has roles")
        if self._role:
            workplace.client_of(self._role)
        self._task, self._spawn, self._started = workplace.task, workplace.spawn, 0

    def take(self, count: int = 1) -> list[int]:
        """Numbers of sub-agents that begin, from 1; taken before anything is waited for, they do not depend on timing.

        Raises:
            ToolError: there would be too many.
        """
        if self._started + count > self._most:
            raise ToolError(f"there have been {self._started} sub-agents already, and {self._most} is the most")
        self._started += count
        return list(range(self._started - count + 1, self._started + 1))

    async def run(
        self, number: int, instruction: Sequence[Mapping[str, Any]], agent: str = "", **options: Any
    ) -> Trajectory:
        """The whole episode of a sub-agent.

        Args:
            number: that ``take`` returned.
            instruction: messages, all that it is told.
            agent: its name; empty for one without.
            options: see ``Rollout.spawn``.
        """
        names = {AGENT: _whole(agent)} if agent else {}
        deeper = [self._below] if self._depth > 1 else []
        tools = (*(tool for tool in self._task.tools if tool.split()[0] != self._toolset), *deeper)
        task = dataclasses.replace(
            self._task,
            id=f"{self._task.id}/{number}",
            instruction=tuple({**message, "content": _whole(message["content"])} for message in instruction),
            verifier="",
            tools=tools,
            environment=self._task.environment if tools else "single_turn",
            budget=Budget(tokens=self._task.budget.tokens, steps=self._steps),
            metadata={key: value for key, value in self._task.metadata.items() if key not in _OWN} | names,
        )
        return await self._spawn(task, role=self._role, **options)


def _whole(content: Any) -> Any:
    """Content of a message with question marks for half surrogate pairs, which no tokenizer encodes; images stay."""
    if isinstance(content, str):
        return content.encode(errors="replace").decode()
    return [{**part, "text": _whole(part["text"])} if "text" in part else part for part in content]
