"""When each agent of an episode was at work, in steps of the critical path (Kimi K2.5, section 3).

An agent's own steps follow each other. The calls of one answer that create sub-agents or give them tasks are one step
together; what they spawn begins after the answer, and the agent goes on after the longest of them. So the last agent
ends at the critical steps of the episode. Links that are malformed change no more than where their agent lies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
import dataclasses
from typing import Any

from k2jax.trajectory.links import SpawnLink, spawn_links
from k2jax.trajectory.steps import CREATING, POLICY, ROLE
from k2jax.trajectory.types import NO_TURN, Trajectory


@dataclasses.dataclass(eq=False, kw_only=True)
class SwarmAgent:
    """An agent of an episode.

    Attributes:
        name: that the agent which spawned it has for it.
        role: who answers.
        status: of its trajectory.
        trajectory: None where it was not stored.
        link: to it; None for the orchestrator.
        parent: index of the agent that spawned it, or -1.
        depth: agents above it.
        children: indices of the agents that it spawned.
        steps: its own, see ``steps.staged_steps_so_far``.
        total_steps: its own and those of all below it.
        critical_steps: from its begin to its end.
        peak: agents below it that were at work at a time.
        begin: steps of the critical path before it.
        work: begins and ends of its own work, in steps after ``begin``; in between it waits for others.
        is_critical: whether the critical path leads through it.
    """

    name: str
    role: str
    status: str
    trajectory: Trajectory | None
    link: SpawnLink | None = None
    parent: int = -1
    depth: int = 0
    children: list[int] = dataclasses.field(default_factory=list)
    steps: int = 0
    total_steps: int = 0
    critical_steps: int = 0
    peak: int = 0
    begin: int = 0
    work: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    is_critical: bool = False

    @property
    def parallelism(self) -> float:
        """Total steps over critical steps; 1 where all work was done one step after another."""
        return self.total_steps / self.critical_steps if self.critical_steps else 1.0


def swarm_schedule(trajectory: Trajectory) -> list[SwarmAgent]:
    """The agents of an episode: the orchestrator first, each before those that it spawned, in order of their begins."""
    role = trajectory.metadata.get(ROLE)
    main = SwarmAgent(
        name="orchestrator",
        role=role if isinstance(role, str) and role else POLICY,
        status=trajectory.status,
        trajectory=trajectory,
    )
    agents, waiting = [], [main]
    while waiting:
        agent, index = waiting.pop(), len(agents)
        agents.append(agent)
        if agent.parent >= 0:
            agents[agent.parent].children.append(index)
        links = [] if agent.trajectory is None else spawn_links(agent.trajectory)
        waiting += [_spawned(link, agent, index) for link in reversed(links)]
    offsets: dict[int, int] = {}
    for agent in reversed(agents):  # sub-agents before those that wait for them
        offsets |= _measure(agent, agents)
    agents[0].is_critical = True
    for agent in agents:
        for child in agent.children:
            agents[child].begin = agent.begin + offsets[child]
        for stage in _stages(agent, agents).values():
            longest = max(stage, key=lambda child: agents[child].critical_steps)
            agents[longest].is_critical = agent.is_critical
    return agents


def _spawned(link: SpawnLink, parent: SwarmAgent, index: int) -> SwarmAgent:
    return SwarmAgent(
        name=link.agent,
        role=link.role or parent.role,
        status=link.status,
        trajectory=link.trajectory,
        link=link,
        parent=index,
        depth=parent.depth + 1,
    )


def _stages(agent: SwarmAgent, agents: list[SwarmAgent]) -> Mapping[int | None, list[int]]:
    """The agents that one spawned, by the turn that did."""
    stages = defaultdict(list)
    for child in agent.children:
        stages[agents[child].link.turn].append(child)
    return stages


def _measure(agent: SwarmAgent, agents: list[SwarmAgent]) -> dict[int, int]:
    """Sets the steps of an agent whose children have theirs, and returns when the children begin, after its begin."""
    if agent.trajectory is None:
        link = agent.link
        agent.steps = 1 if link.steps is None else link.steps
        agent.critical_steps = agent.steps if link.critical_steps is None else link.critical_steps
        agent.total_steps = agent.steps if link.total_steps is None else link.total_steps
        agent.work = [(0, agent.critical_steps)]
        return {}
    answers = _answers(agent, agents)
    time, done, offsets = 0, 0, {}
    for turn, stage in _stages(agent, agents).items():
        end = len(answers) if turn is None else max(done, min(turn, len(answers)))
        own = sum(answers[done:end])
        agent.work += [(time, time + own)] if own else []
        time, done = time + own, end
        offsets |= dict.fromkeys(stage, time)
        time += max(agents[child].critical_steps for child in stage)
        agent.peak = max(agent.peak, sum(1 + agents[child].peak for child in stage))
    rest = sum(answers[done:])
    agent.work += [(time, time + rest)] if rest else []
    agent.steps, agent.critical_steps = sum(answers), time + rest
    agent.total_steps = agent.steps + sum(agents[child].total_steps for child in agent.children)
    return offsets


def _answers(agent: SwarmAgent, agents: list[SwarmAgent]) -> list[int]:
    """Steps of each answer in order; calls that are no list are none."""
    links = [agents[child].link for child in agent.children]
    spawning = {(link.turn, link.call) for link in links}
    steps = {}
    for node in agent.trajectory.nodes:
        if node.turn != NO_TURN:
            calls = node.message.get("tool_calls") if isinstance(node.message, Mapping) else None
            calls = calls if isinstance(calls, list | tuple) else ()
            together = sum(_creates(call) or (node.turn + 1, at) in spawning for at, call in enumerate(calls))
            steps[node.turn] = max(1, len(calls)) - max(0, together - 1)
    return [steps[turn] for turn in sorted(steps)]


def _creates(call: Any) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and function.get("name") in CREATING
