"""The verifier of simulated worlds: how the world was left, what the user was told, and what was not to be done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from k2jax.agents.environment import OUTCOME
from k2jax.agents.sandbox import Sandbox
from k2jax.agents.task import Task
from k2jax.agents.verifier import Verifier
from k2jax.errors import UserError
from k2jax.tasks.worlds.world import SimulatedWorld
from k2jax.tasks.worlds.world_tools import told_world, world_of
from k2jax.trajectory import Reward, Trajectory
from k2jax.trajectory.types import NO_TURN

EXPECTED = "expected"
"""Key of a task's metadata: ``{"goal", "told", "forbidden", "calls"}``: conditions of ``semantics`` on the last state,
texts that the agent has to say, tools that it must not have changed anything with, and calls that reach all of it."""


class GoalReport(NamedTuple):
    """How far an episode came, each a share in [0, 1].

    Attributes:
        goal: conditions that hold.
        told: texts that were said.
        obeyed: 1 where no forbidden tool was carried out.
    """

    goal: float
    told: float
    obeyed: float

    @property
    def solved(self) -> bool:
        """Whether all of it is as it should be."""
        return min(self) == 1.0


def report_of(
    expected: Mapping[str, Any],
    world: SimulatedWorld,
    calls: Sequence[Sequence[Any]],
    messages: Sequence[Mapping[str, Any]],
) -> GoalReport:
    """How far an episode came.

    Args:
        expected: see ``EXPECTED``.
        world: as the episode left it.
        calls: ``(name, arguments, fate, error)`` of all calls.
        messages: of the agent.
    """
    reached = world.reached(expected["goal"])
    said = "\n".join(str(message.get("content") or "") for message in messages).lower()
    told = [str(text).lower() in said for text in expected["told"]]
    carried_out = {name for name, _, _, error in calls if not error}
    return GoalReport(_share(reached), _share(told), float(not carried_out & set(expected["forbidden"])))


def _share(found: Sequence[bool]) -> float:
    return sum(found) / len(found) if found else 1.0


class WorldVerifier(Verifier):
    """1 where the goal is reached, all is told and nothing forbidden was done; the shares are parts of the reward.

    An episode that was cut is judged by what it left where the task says so, see ``Task.judge_truncated``.
    """

    spec = None

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox | None) -> Reward:
        """The reward of what an episode left.

        Raises:
            UserError: the task's metadata are no world's.
        """
        left, expected = trajectory.metadata.get(OUTCOME), task.metadata.get(EXPECTED)
        if not isinstance(expected, Mapping) or set(expected) != {"goal", "told", "forbidden", "calls"}:
            raise UserError(f"the task {task.id!r} says not what is expected; use the dataset 'worlds'")
        if left is None:
            return Reward(0.0, info={"cut": True})
        world = world_of({**told_world(task), "state": left["state"]}, 0)
        messages = [node.message for node in trajectory.nodes if node.turn != NO_TURN and node.message]
        report = report_of(expected, world, left["calls"], messages)
        return Reward(float(report.solved), report._asdict())
