"""Steps of an episode as the reports count them: calls of tools, and the longest chain of them over sub-agents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from k2jax.agents.spawning import SPAWNED
from k2jax.trajectory import Trajectory
from k2jax.trajectory.types import NO_TURN

STEPS, CRITICAL_STEPS = "steps", "critical_steps"
"""Keys of a trajectory's metadata."""
MOST_CALLS = 256
"""Calls of one answer that are carried out."""


def steps_of_answer(message: Mapping[str, Any] | None) -> int:
    """Steps of one answer: its calls of tools, and 1 where it has none."""
    return max(1, len((message or {}).get("tool_calls") or ()))


def turns_so_far(trajectory: Trajectory) -> int:
    """Calls of the model, of which one that was cut short and goes on is one."""
    return len({node.turn for node in trajectory.nodes} - {NO_TURN})


def steps_so_far(trajectory: Trajectory) -> int:
    """Steps of all answers of an episode, without those of its sub-episodes."""
    return sum({node.turn: steps_of_answer(node.message) for node in trajectory.nodes if node.turn != NO_TURN}.values())


def prompt_tokens_so_far(trajectory: Trajectory) -> int:
    """Tokens of the prompts of all calls of the model."""
    parents = {node.turn: node.parent for node in trajectory.nodes if node.turn != NO_TURN}
    return sum(len(trajectory.path_tokens(parent)) for parent in parents.values())


def critical_steps_so_far(trajectory: Trajectory) -> int:
    """Critical steps (Kimi K2.5, section 3): own steps, and for each turn those of its longest sub-episode."""
    longest: dict[int, int] = defaultdict(int)
    for link in trajectory.metadata.get(SPAWNED, {}).values():
        longest[link["turn"]] = max(longest[link["turn"]], link[CRITICAL_STEPS])
    return steps_so_far(trajectory) + sum(longest.values())
