"""Where the sub-episodes of a trajectory were spawned and what became of them, read from any metadata.

``steps.add_spawned`` writes the links. A stored trajectory is data from outside: here what is malformed is unknown, and
nothing is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any, get_args

from k2jax.trajectory.steps import AGENT, CRITICAL_STEPS, NO_CALL, ROLE, SPAWNED, STEPS, TOTAL_STEPS
from k2jax.trajectory.types import NO_TURN, Status, Trajectory

LARGEST_COUNT = 10**9
"""Turns, calls, steps and tokens above it are no counts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpawnLink:
    """A sub-episode of a trajectory.

    Attributes:
        number: of the sub-episode, which is its key in ``Trajectory.spawned``.
        turn: after how many answers of the model it was spawned; None where unknown.
        call: number of the call within its answer that spawned it, or ``NO_CALL``.
        agent: the name that the spawning agent has for it, or that of its task.
        role: who answers in it; empty where unknown.
        task: id of its task.
        status: of its trajectory; empty where unknown.
        steps: its own, or None where unknown; so with those that follow.
        critical_steps: of it and its sub-episodes.
        total_steps: of it and its sub-episodes.
        tokens: that were sampled in it.
        trajectory: None where it was not stored.
    """

    number: int
    turn: int | None
    call: int
    agent: str
    role: str
    task: str
    status: str
    steps: int | None
    critical_steps: int | None
    total_steps: int | None
    tokens: int | None
    trajectory: Trajectory | None


def spawn_links(trajectory: Trajectory) -> list[SpawnLink]:
    """The sub-episodes that are stored with a trajectory or that its metadata name, by the turn that spawned them.

    Those whose turn is unknown come last.
    """
    entries = trajectory.metadata.get(SPAWNED)
    entries = entries if isinstance(entries, Mapping) else {}
    links = {
        int(key): entry
        for key, entry in entries.items()
        if key.isascii() and key.isdecimal() and len(key) < 10 and isinstance(entry, Mapping)
    }
    numbers = links.keys() | trajectory.spawned.keys()
    read = [_read(number, links.get(number, {}), trajectory.spawned.get(number)) for number in numbers]
    return sorted(read, key=lambda link: (LARGEST_COUNT if link.turn is None else link.turn, link.number))


def _read(number: int, entry: Mapping[str, Any], stored: Trajectory | None) -> SpawnLink:
    call, metadata = _count(entry.get("call")), {} if stored is None else stored.metadata
    task = _text(entry.get("task")) or ("" if stored is None else stored.task)
    return SpawnLink(
        number=number,
        turn=_count(entry.get("turn")),
        call=NO_CALL if call is None else call,
        agent=_text(entry.get(AGENT)) or _text(metadata.get(AGENT)) or task or f"sub-episode {number}",
        role=_text(entry.get(ROLE)) or _text(metadata.get(ROLE)),
        task=task,
        status=_status(entry.get("status")) if stored is None else stored.status,
        steps=_count(entry.get(STEPS)),
        critical_steps=_count(entry.get(CRITICAL_STEPS)),
        total_steps=_count(entry.get(TOTAL_STEPS)),
        tokens=_count(entry.get("tokens")) if stored is None else stored.sampled_tokens,
        trajectory=stored,
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= LARGEST_COUNT else None


def _status(value: Any) -> str:
    return value if value in get_args(Status) else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def spawning_node(trajectory: Trajectory, link: SpawnLink) -> int | None:
    """Index of the sampled node whose answer spawned a sub-episode; None where no answer did, or it is unknown."""
    nodes = {node.turn: index for index, node in enumerate(trajectory.nodes) if node.turn != NO_TURN}
    turns = sorted(nodes)
    return nodes[turns[link.turn - 1]] if link.turn and link.turn <= len(turns) else None


def sub_trajectories(trajectory: Trajectory) -> Iterator[Trajectory]:
    """The stored trajectories of all agents below one, by their numbers, each before its own sub-agents."""
    for number in sorted(trajectory.spawned):
        yield trajectory.spawned[number]
        yield from sub_trajectories(trajectory.spawned[number])
