"""Rewards that a harness hands back: what one may be, and the verifier that gives an episode the one it was handed."""

from __future__ import annotations

from collections.abc import Mapping
import math
from typing import Any, NamedTuple

from k2jax.agents.environment import OUTCOME
from k2jax.agents.rewards import LARGEST, checked_reward
from k2jax.agents.sandbox import Sandbox
from k2jax.agents.task import Task
from k2jax.agents.verifier import Verifier
from k2jax.errors import UserError, abbreviate, nearest
from k2jax.trajectory import Reward, Trajectory

VERIFIER = "handed_back"
"""Name of the verifier."""
MOST_BYTES = 1 << 17
"""Of the JSON of a reward."""
_DEEPEST = 50
_FIELDS = {"reward", "parts", "info"}


class RewardRange(NamedTuple):
    """The range of a reward, both ends included."""

    lowest: float
    highest: float

    def check(self) -> None:
        """Raises UserError where it is empty or has no ends."""
        if not (math.isfinite(self.lowest) and math.isfinite(self.highest) and self.lowest < self.highest):
            raise UserError(f"lowest={self.lowest:g} and highest={self.highest:g} are no range of rewards")
        if max(abs(self.lowest), abs(self.highest)) > LARGEST:
            raise UserError(f"lowest and highest are {LARGEST:g} in size at most")

    def read(self, value: Any) -> dict[str, Any]:
        """A reward from JSON: a number, or an object with ``reward`` and optionally ``parts`` and ``info``.

        Args:
            value: parsed JSON of somebody else.

        Returns:
            ``value``, ``parts`` and ``info`` as ``Reward`` has them.

        Raises:
            ValueError: it is none, or out of range; its message says why.
        """
        fields = value if isinstance(value, dict) else {"reward": value}
        if unknown := sorted(set(fields) - _FIELDS):
            raise ValueError(f"a reward has no field {abbreviate(unknown[0])}{nearest(unknown[0], sorted(_FIELDS))}")
        number, parts, info = fields.get("reward"), fields.get("parts", {}), fields.get("info", {})
        if not _is_number(number):
            raise ValueError(f"a reward must be a number, unlike {abbreviate(number)}")
        if not isinstance(parts, Mapping) or not all(map(_is_number, parts.values())):
            raise ValueError("the parts of a reward must be an object of numbers")
        if not isinstance(info, Mapping) or not _is_flat(info, _DEEPEST):
            raise ValueError(f"the info of a reward must be an object of at most {_DEEPEST} levels")
        reward = checked_reward(Reward(number, parts, info))
        if not self.lowest <= reward["value"] <= self.highest:
            raise ValueError(f"a reward of {reward['value']:g} is outside {self.lowest:g} to {self.highest:g}")
        return reward


class HandedBackVerifier(Verifier):
    """The reward that the program of the scaffold ``command`` has handed back, as it is."""

    spec = None

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox | None) -> Reward:
        """See ``Verifier.score``.

        Raises:
            UserError: no program has handed back a reward: the task has another scaffold.
        """
        handed = trajectory.metadata.get(OUTCOME, {}).get(VERIFIER)
        if handed is None:
            raise UserError(
                f"the verifier {VERIFIER!r} gives what the scaffold 'command' was handed back, and the task "
                f"{task.id!r} has the scaffold {task.scaffold!r}"
            )
        return Reward(**handed)


def _is_flat(value: Any, levels: int) -> bool:
    """Whether JSON has at most so many levels: what stores it recurses."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return levels >= 0 and all(_is_flat(each, levels - 1) for each in inner)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
