"""What an agent made of its sub-agents, read off its trajectory (Kimi K2.5, section 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
import dataclasses

from k2jax.trajectory.steps import AGENT, CREATING, NO_CALL, SPAWNED, critical_steps_so_far, total_steps_so_far
from k2jax.trajectory.types import NO_TURN, Node, Trajectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwarmRecord:
    """An agent and its sub-agents.

    Attributes:
        created: sub-agents that it created; one without a name is created with its task.
        used: sub-agents that it gave at least one task.
        assigned: tasks that it gave to sub-agents.
        finished: of these, how many were finished; not those that ran out of a budget or failed.
        total_steps: of all agents, at every depth.
        critical_steps: see ``steps.critical_steps_so_far``.
        peak: sub-agents that were at work at a time, at every depth.
    """

    created: int
    used: int
    assigned: int
    finished: int
    total_steps: int
    critical_steps: int
    peak: int

    @property
    def parallelism(self) -> float:
        """Total steps over critical steps: 1 where all work was done one step after another."""
        return self.total_steps / self.critical_steps if self.critical_steps else 1.0


def swarm_record(trajectory: Trajectory) -> SwarmRecord:
    """What an episode made of its sub-agents; those of an environment, which no call spawned, count as steps alone."""
    links = {int(number): link for number, link in trajectory.metadata.get(SPAWNED, {}).items()}
    assigned = [link for link in links.values() if link["call"] != NO_CALL]
    return SwarmRecord(
        created=sum(map(_creates, _results(trajectory))) + sum(AGENT not in link for link in assigned),
        used=len({link.get(AGENT, link["task"]) for link in assigned}),
        assigned=len(assigned),
        finished=sum(link["status"] == "finished" for link in assigned),
        total_steps=total_steps_so_far(trajectory),
        critical_steps=critical_steps_so_far(trajectory),
        peak=_peak(trajectory),
    )


def _results(trajectory: Trajectory) -> Iterator[Node]:
    """What calls of the model's answers returned, each once: a context that is rewritten shows it again, later."""
    first: dict[int, int] = {}  # child of each node
    ends = set()  # of answers and of their results so far
    for index, node in enumerate(trajectory.nodes):
        is_first = first.setdefault(node.parent, index) == index
        if node.turn != NO_TURN:
            ends.add(index)
        elif is_first and node.parent in ends and (node.message or {}).get("role") == "tool":
            ends.add(index)
            yield node


def _creates(node: Node) -> bool:
    message = node.message or {}
    return message.get("name") in CREATING and not message.get("is_error")


def _peak(trajectory: Trajectory) -> int:
    """Sub-agents at work at a time; those that wait for their own are at work."""
    by_turn: Counter[int] = Counter()
    for number, link in trajectory.metadata.get(SPAWNED, {}).items():
        child = trajectory.spawned.get(int(number))
        by_turn[link["turn"]] += 1 + (_peak(child) if child is not None else 0)
    return max(by_turn.values(), default=0)
