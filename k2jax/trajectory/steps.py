"""Steps of an episode as the reports count them: calls of tools, and the longest chain of them over sub-agents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from k2jax.trajectory.budget import Budget
from k2jax.trajectory.types import NO_TURN, Trajectory

SPAWNED = "started"
"""Key of a trajectory's metadata: what became of the sub-episodes that it spawned, by their numbers from 0."""
ROLE, POLICY = "role", "policy"
"""Key of a sub-episode's metadata: who answered in it, and the role that is trained."""
AGENT = "sub_agent"
"""Key of a sub-episode's metadata: the name that the spawning agent has for it; ``agent`` is that of black boxes."""
STEPS, CRITICAL_STEPS, TOTAL_STEPS = "steps", "critical_steps", "total_steps"
"""Keys of a trajectory's metadata: own steps, critical steps, and the steps of all agents."""
NO_CALL = -1
"""Of a sub-episode that no call of a tool spawned."""
CREATING = ("create_subagent", "n")
"""Names of the tools that create a sub-agent: that of Kimi K2.5 (appendix E.8), and its short form."""
ASSIGNING = ("assign_task", "a", "create_sub_agents", "delegate")
"""Names of the tools that give a sub-agent a task, also where the call is wrong and spawns nothing."""
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


def staged_steps_so_far(trajectory: Trajectory) -> int:
    """Steps of all answers of an episode, of which each is one or more stages (Kimi K2.5, section 3).

    A call of a tool is a stage of one step. Those calls of an answer that create sub-agents or give them tasks are one
    stage together, of one step.
    """
    links = trajectory.metadata.get(SPAWNED, {}).values()
    spawning = {(link["turn"], link["call"]) for link in links if link["call"] != NO_CALL}
    answers = {node.turn: node.message for node in trajectory.nodes if node.turn != NO_TURN}
    steps = 0
    for turn, message in answers.items():
        calls = (message or {}).get("tool_calls") or ()
        together = sum(
            (turn + 1, at) in spawning or _name(call) in CREATING + ASSIGNING for at, call in enumerate(calls)
        )
        steps += steps_of_answer(message) - max(0, together - 1)
    return steps


def _name(call: Any) -> Any:
    return call.get("function", {}).get("name") if isinstance(call, Mapping) else None


def critical_steps_so_far(trajectory: Trajectory) -> int:
    """Critical steps (Kimi K2.5, section 3): sum over stages of own steps and those of the longest sub-episode."""
    longest: dict[int, int] = defaultdict(int)
    for link in trajectory.metadata.get(SPAWNED, {}).values():
        longest[link["turn"]] = max(longest[link["turn"]], link[CRITICAL_STEPS])
    return staged_steps_so_far(trajectory) + sum(longest.values())


def total_steps_so_far(trajectory: Trajectory) -> int:
    """Steps of an episode and of all its sub-episodes, stages counted as in critical steps."""
    links = trajectory.metadata.get(SPAWNED, {}).values()
    return staged_steps_so_far(trajectory) + sum(link[TOTAL_STEPS] for link in links)


def used_up_limit(trajectory: Trajectory, budget: Budget) -> str:
    """Which limit leaves no room for another answer, in words; empty for none."""
    used: dict[str, Callable[[Trajectory], int]] = {
        "steps": steps_so_far,
        "critical_steps": critical_steps_so_far,
        "total_steps": total_steps_so_far,
        "prompt_tokens": prompt_tokens_so_far,
    }
    for name, count in used.items():
        limit = getattr(budget, name)
        if limit is not None and count(trajectory) >= limit:
            return f"{limit} {name}"
    return ""


def steps_record(trajectory: Trajectory) -> dict[str, int]:
    """What the metadata of an episode say of its steps."""
    steps = {STEPS: steps_so_far(trajectory), CRITICAL_STEPS: critical_steps_so_far(trajectory)}
    return steps | {TOTAL_STEPS: total_steps_so_far(trajectory)}


def add_spawned(trajectory: Trajectory, number: int, place: tuple[int, int], ended: Trajectory) -> None:
    """Keeps a sub-episode that has ended, and notes what became of it.

    Args:
        trajectory: of the episode that spawned it.
        number: of the sub-episode.
        place: after how many turns it was spawned, and by which call of that answer, or ``NO_CALL``. A rebuilt episode
            has all its turns again, so the first place counts.
        ended: its trajectory, which gets the key of the episode.
    """
    links = trajectory.metadata.get(SPAWNED, {})
    turn, call = place
    first = links.get(str(number), {"turn": turn, "call": call})
    reward = None if ended.reward is None else ended.reward.value
    link = {"task": ended.task, "status": ended.status, "tokens": ended.sampled_tokens, "reward": reward}
    link |= {key: ended.metadata[key] for key in (ROLE, AGENT) if key in ended.metadata}
    link |= {key: first[key] for key in ("turn", "call")} | steps_record(ended)
    trajectory.metadata[SPAWNED] = dict(sorted({**links, str(number): link}.items(), key=lambda item: int(item[0])))
    ended.key, ended.purpose = trajectory.key, trajectory.purpose  # one that never began has none
    trajectory.spawned[number] = ended
