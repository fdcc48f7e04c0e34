"""Which nodes of a token tree the model wrote, and which were shown to it."""

from __future__ import annotations

from k2jax.trajectory.types import NO_TURN, Trajectory

COPIES = "copies"
"""Key of a trajectory's metadata: the sampled nodes of which observed nodes are copies, by the copies' indices."""


def is_answer(trajectory: Trajectory, node: int) -> bool:
    """Whether the model wrote a node: it was sampled, or is a copy of one that was."""
    return trajectory.nodes[node].turn != NO_TURN or str(node) in trajectory.metadata.get(COPIES, {})
