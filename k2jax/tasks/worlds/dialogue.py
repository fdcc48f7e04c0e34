"""A dialogue with a simulated user in a simulated world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k2jax.agents.environment import Observation
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.sandbox import Sandbox
from k2jax.agents.task import Task
from k2jax.tasks.worlds.users import ScriptedUser, UserSpec
from k2jax.tasks.worlds.world_tools import TaskWorldTools

USER = "user"
"""Key of a task's metadata: a ``UserSpec`` as JSON. Its opening is the last message of the instruction."""


class WorldEnvironment(ToolEnvironment):
    """Carries out calls as ``ToolEnvironment`` does; an answer without one goes to the user, until that ends it."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """See ``ToolEnvironment.reset``.

        Raises:
            UserError: the task names no world or user, or one that cannot be made.
        """
        self._user = ScriptedUser(UserSpec.from_json(task.metadata.get(USER)))
        return await super().reset(task, seed)

    async def user_reply(self, text: str) -> str | None:
        """What the simulated user says."""
        return self._user.reply(text)

    async def outcome(self, task: Task, sandbox: Sandbox | None) -> Mapping[str, Any]:
        """The world's state, its calls with what went wrong, and what the user has told; see ``goals``."""
        [world] = [toolset.world for toolset in self.opened if isinstance(toolset, TaskWorldTools)]
        assert world is not None
        calls = [(call.name, call.arguments, call.fate, call.error) for call in world.log]
        return {"state": world.state, "calls": calls, "told": list(self._user.told)}
