"""A rollout's trajectories as one: side calls are trees of their own beside the agent's history."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

from k2jax.trajectory import Node, Trajectory
from k2jax.trajectory.types import ROOT


def joined_nodes(trajectories: Sequence[Trajectory]) -> tuple[list[Node], list[dict[str, Any]]]:
    """Returns the nodes of several trajectories in one list, and their requests with the nodes' new numbers.

    Args:
        trajectories: the main one, then those of side calls, as a gateway returns them. The main one's nodes come
            last, so that its last answer is the episode's.
    """
    main, *sides = trajectories
    nodes: list[Node] = []
    requests: list[dict[str, Any]] = []
    for trajectory in (*sides, main):
        first = len(nodes)
        for node in trajectory.nodes:
            nodes.append(node if node.parent == ROOT else dataclasses.replace(node, parent=node.parent + first))
        for request in trajectory.metadata["requests"]:
            requests.append(request | ({"node": request["node"] + first} if "node" in request else {}))
    return nodes, sorted(requests, key=lambda request: request["began"])
