"""What agents made of their sub-agents, over many episodes: terms of rewards, and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from k2jax.config.schema import ParlConfig
from k2jax.trajectory import Trajectory
from k2jax.trajectory.links import sub_trajectories
from k2jax.trajectory.steps import POLICY, ROLE
from k2jax.trajectory.swarm import SwarmRecord, swarm_record

_MEANS = ("created", "used", "assigned", "finished", "total_steps", "critical_steps", "peak")


def parallel_value(swarm: SwarmRecord, parl: ParlConfig) -> float:
    """r_parallel in [0, 1]: min(1, n / n_ref), with n the sub-agents that got a task, or all that were created."""
    agents = swarm.used if parl.counted == "assigned" else swarm.created
    return min(1.0, agents / parl.agents)


def finish_value(swarm: SwarmRecord) -> float:
    """r_finish in [0, 1]: finished over assigned tasks of sub-agents, 0 where none was assigned."""
    return swarm.finished / swarm.assigned if swarm.assigned else 0.0


def parallelism(swarms: Sequence[SwarmRecord]) -> float:
    """Total steps of all episodes over their critical steps, so that long episodes count by their length.

    It is the ratio of the means and not the mean of the ratios; 1 where no episode has a step.
    """
    critical = sum(swarm.critical_steps for swarm in swarms)
    return sum(swarm.total_steps for swarm in swarms) / critical if critical else 1.0


def has_sub_agents(trajectories: Sequence[Trajectory]) -> bool:
    """Whether any episode has created a sub-agent, or given one a task."""
    return any(swarm.created or swarm.assigned for swarm in map(swarm_record, trajectories))


def swarm_metrics(trajectories: Sequence[Trajectory], parl: ParlConfig) -> dict[str, float]:
    """Metrics of episodes that count; empty without any.

    Args:
        trajectories: of agents, with their sub-agents' in ``spawned``.
        parl: decides what ``parallel`` counts.

    Returns:
        Means of an episode: ``parallel`` and ``finish``, the terms without their weights; ``score``, the verifier's
        reward; ``created``, ``used``, ``assigned`` and ``finished``, see ``SwarmRecord``; ``total_steps``,
        ``critical_steps`` and ``peak``; ``orchestrator_tokens``, and ``tokens/ROLE`` of its sub-agents at every depth,
        by who answered in them [tokens]. Besides, ``parallelism``, see the function; ``peak_max``, the largest; and
        ``truncated``, the share of episodes that a budget has cut.
    """
    if not trajectories:
        return {}
    swarms = [swarm_record(trajectory) for trajectory in trajectories]
    scores = [trajectory.reward.value for trajectory in trajectories if trajectory.reward is not None]
    record = {
        "parallel": float(np.mean([parallel_value(swarm, parl) for swarm in swarms])),
        "finish": float(np.mean([finish_value(swarm) for swarm in swarms])),
        "parallelism": parallelism(swarms),
        "peak_max": float(max(swarm.peak for swarm in swarms)),
        "truncated": float(np.mean([trajectory.status == "truncated" for trajectory in trajectories])),
        "orchestrator_tokens": float(np.mean([trajectory.sampled_tokens for trajectory in trajectories])),
    }
    if scores:
        record["score"] = float(np.mean(scores))
    record |= {name: float(np.mean([getattr(swarm, name) for swarm in swarms])) for name in _MEANS}
    tokens: Counter[str] = Counter()
    for trajectory in trajectories:
        for sub_agent in sub_trajectories(trajectory):
            tokens[sub_agent.metadata.get(ROLE, POLICY)] += sub_agent.sampled_tokens
    return record | {f"tokens/{role}": count / len(trajectories) for role, count in sorted(tokens.items())}
