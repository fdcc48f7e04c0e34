"""The toolset of a simulated world, and what a task's metadata say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
import json
from typing import Any

from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.task import Task
from k2jax.agents.toolsets.types import Toolset, Workplace
from k2jax.errors import UserError
from k2jax.tasks.worlds.failures import FailureRates
from k2jax.tasks.worlds.world import SimulatedWorld, WorldFaultError
from k2jax.tasks.worlds.world_spec import WorldSpec, declarations, read_world

WORLD = "world"
"""Key of a task's metadata: ``{"spec", "state", "tools", "rates"}``: a world, its first state, the names of the tools
that the agent has (empty is all), and rates of failures."""


class TaskWorldTools(Toolset):
    """The tools of an episode's world.

    Attributes:
        world: of the episode.
    """

    def __init__(self):
        self.tools: Sequence[Mapping[str, Any]] = ()
        self.world: SimulatedWorld | None = None

    def tools_of(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """See ``Toolset.tools_of``."""
        told = told_world(task)
        return declarations(spec_of(told["spec"]), told["tools"])

    async def open(self, workplace: Workplace) -> None:
        """Makes the world in the task's first state; its failures follow the episode's seed.

        Raises:
            UserError: the task names no world, or one that cannot be made.
        """
        told = told_world(workplace.task)
        self.world = world_of(told, workplace.seed)
        self.tools = declarations(self.world.spec, told["tools"])

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What the world answers.

        Raises:
            ToolError: it refuses, or the call fails.
            EnvironmentFailedError: the tool is wrong, which is no fault of the agent's.
        """
        assert self.world is not None
        try:
            return self.world.call(name, arguments)
        except WorldFaultError as error:
            raise EnvironmentFailedError(str(error)) from error


def told_world(task: Task) -> Mapping[str, Any]:
    """What a task's metadata say of its world.

    Raises:
        UserError: nothing that can be read.
    """
    told = task.metadata.get(WORLD)
    if not isinstance(told, Mapping) or set(told) != {"spec", "state", "tools", "rates"}:
        raise UserError(f"the task {task.id!r} names no world; use the dataset 'worlds'")
    return told


def world_of(told: Mapping[str, Any], seed: int) -> SimulatedWorld:
    """A new world of a task's metadata.

    Raises:
        UserError: it cannot be made.
    """
    return SimulatedWorld(spec_of(told["spec"]), told["state"], FailureRates.from_json(told["rates"]), seed)


def spec_of(values: Any) -> WorldSpec:
    """The checked world of a task's metadata; samples of a task have the same one, which is checked once."""
    return _read(json.dumps(values, sort_keys=True))


@functools.lru_cache(maxsize=64)
def _read(text: str) -> WorldSpec:
    return read_world(json.loads(text))
