"""Faults that are planted into dialogues at given rates, one at most in each: of the agent, the user, or a tool.

What is planted is told to nobody but the manifest: a judge is worth something where it finds it in the transcript and
the world.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import random
from typing import Any

from k2jax.agents.environment import Observation
from k2jax.agents.task import Task
from k2jax.synthesize.stages import seed_of
from k2jax.tasks.worlds.dialogue import USER, WorldEnvironment
from k2jax.tasks.worlds.goals import EXPECTED
from k2jax.tasks.worlds.users import ScriptedUser, UserSpec
from k2jax.tasks.worlds.world_tools import WORLD

MISTAKES = ("calls another tool", "changes an argument", "skips a call", "tells nothing", "stops at once")
"""Of an agent."""
UNKNOWN = "I do not know."


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultRates:
    """Shares of dialogues with a planted fault."""

    agent: float = 0.0  #: of the program that plays the agent
    user: float = 0.0  #: a user who leaves early, or keeps back what it knows
    tool: float = 0.0  #: a tool that does nothing or always fails


def planted_fault(task: Task, seed: int, rates: FaultRates) -> str:
    """``agent``, ``user`` or ``tool``, or ``nobody``; a user who has told all from the beginning cannot be at fault."""
    draw = random.Random(seed_of("planted", seed)).random()
    for name, rate in dataclasses.asdict(rates).items():
        draw -= rate
        if draw < 0:
            return "nobody" if name == "user" and not task.metadata[USER]["facts"] else name
    return "nobody"


def mistake_of(seed: int) -> str:
    """The mistake of the agent in an episode of ``seed``, of ``MISTAKES``."""
    return random.Random(seed_of("mistake", seed)).choice(MISTAKES)


class ClosedUser(ScriptedUser):
    """Tells a part of what it knows, and then leaves, or says that it does not know.

    Args:
        spec: the user.
        told: how many facts it tells.
        leaves: whether it then leaves.
    """

    def __init__(self, spec: UserSpec, told: int, leaves: bool):
        super().__init__(dataclasses.replace(spec, facts=spec.facts[:told], closing=UNKNOWN))
        self._leaves = leaves

    def reply(self, text: str) -> str | None:
        """See ``ScriptedUser.reply``."""
        said = super().reply(text)
        return None if self._leaves and said == UNKNOWN else said


class ClosedUserEnvironment(WorldEnvironment):
    """A world whose user is at fault.

    Args:
        seed: of how it is.
    """

    def __init__(self, seed: int):
        super().__init__()
        self._rng = random.Random(seed_of("user", seed))

    async def reset(self, task: Task, seed: int) -> Observation:
        """See ``WorldEnvironment.reset``."""
        seen = await super().reset(task, seed)
        spec = UserSpec.from_json(task.metadata[USER])
        self._user = ClosedUser(spec, self._rng.randrange(len(spec.facts)), self._rng.random() < 0.5)
        return seen


def with_broken_tool(task: Task, seed: int) -> Task:
    """The task in a world where a tool of its solution does nothing and says so to nobody, or always fails."""
    rng = random.Random(seed_of("tool", seed))
    told: Mapping[str, Any] = task.metadata[WORLD]
    by_name = {tool["name"]: tool for tool in told["spec"]["tools"]}
    needed = [name for name, _ in task.metadata[EXPECTED]["calls"]]
    broken = rng.choice([name for name in needed if by_name[name]["effects"]] or needed)
    collection = next(iter(told["spec"]["collections"]))
    failing = [{"condition": {"exists": [collection, ""]}, "error": "internal error of the service"}]
    change = {"effects": []} if rng.random() < 0.5 and by_name[broken]["effects"] else {"requires": failing}
    tools = [tool | change if tool["name"] == broken else tool for tool in told["spec"]["tools"]]
    metadata = {**task.metadata, WORLD: {**told, "spec": {**told["spec"], "tools": tools}}}
    return dataclasses.replace(task, metadata=metadata)
