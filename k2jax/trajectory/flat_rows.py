"""Rows of tokens that are made of a trajectory for training: sequences, or a tree flattened depth-first."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from k2jax.trajectory.types import NO_VERSION, ROOT, Trajectory


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TrajectoryRow:
    """Tokens of a trajectory in the layout of a row of ``k2jax.batch.PackedBatch``; every array is ``[T]``.

    Attributes:
        tokens: int32.
        mask: bool, whether the row trains the token.
        logprobs: float32, recorded at sampling [nats].
        versions: int64, of the weights that sampled the token.
        turns: int32, number of the call that sampled the token; NO_TURN for observations.
        temperatures: float32.
        nodes: int32, index of the token's node in its trajectory.
        positions: int32, depth of the token on its path.
        parent: int32, index in the row of the token before it on its path; -1 for the first.
        exit: int32, index in the row at which the subtree of the token ends.
        is_tree: whether tokens may follow others than the one before them.
    """

    tokens: np.ndarray
    mask: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    turns: np.ndarray
    temperatures: np.ndarray
    nodes: np.ndarray
    positions: np.ndarray
    parent: np.ndarray
    exit: np.ndarray
    is_tree: bool = False

    def cut(self, length: int) -> TrajectoryRow:
        """The first ``length`` tokens. Parents precede their children, so every path in it is a path of the row."""
        arrays = {name: getattr(self, name)[:length] for name in _ARRAYS}
        arrays["exit"] = np.minimum(arrays["exit"], length).astype(np.int32)
        return TrajectoryRow(**arrays, is_tree=self.is_tree)

    def to_json(self) -> dict[str, Any]:
        """The arrays as JSON lists by name; a sequence has no positions, parent and exit, which say nothing new."""
        left_out = {"nodes"} if self.is_tree else {"nodes", "positions", "parent", "exit"}
        return {name: getattr(self, name).tolist() for name in _ARRAYS if name not in left_out}


_ARRAYS = [field.name for field in dataclasses.fields(TrajectoryRow) if field.name != "is_tree"]


def sequence_row(trajectory: Trajectory, path: Sequence[int], trained: Sequence[int]) -> TrajectoryRow:
    """One path of a trajectory as a row.

    Args:
        trajectory: the trajectory.
        path: indices of its nodes from a root downwards.
        trained: those of them whose masks the row keeps; the others are context.
    """
    length = sum(len(trajectory.nodes[index].tokens) for index in path)
    index_T = np.arange(length, dtype=np.int32)
    return _row(trajectory, path, set(trained), index_T, index_T - 1, np.full(length, length, np.int32))


def tree_row(trajectory: Trajectory, order: Sequence[int]) -> TrajectoryRow:
    """A whole trajectory as one row that holds every token once.

    Args:
        trajectory: the trajectory.
        order: all of its nodes, depth-first.
    """
    nodes = trajectory.nodes
    starts, last, depth, start = {}, {ROOT: -1}, {ROOT: 0}, 0  # of a node: first token, last token on its path, depth
    positions, parents = [], []
    for index in order:
        node, count = nodes[index], len(nodes[index].tokens)
        starts[index] = start
        positions.append(depth[node.parent] + np.arange(count))
        parents.append(np.concatenate([[last[node.parent]], start + np.arange(count - 1)])[:count])
        last[index] = start + count - 1 if count else last[node.parent]
        depth[index] = depth[node.parent] + count
        start += count
    ends = {index: starts[index] + len(nodes[index].tokens) for index in order}
    for index in reversed(order):  # children before parents
        if nodes[index].parent != ROOT:
            ends[nodes[index].parent] = max(ends[nodes[index].parent], ends[index])
    exits = [np.full(len(nodes[index].tokens), ends[index]) for index in order]
    row = _row(trajectory, order, set(order), _joined(positions), _joined(parents), _joined(exits))
    return dataclasses.replace(row, is_tree=True)


def depth_first(trajectory: Trajectory) -> list[int]:
    """Indices of all nodes, each before its children and each subtree in one piece, siblings as they were recorded."""
    children: dict[int, list[int]] = {}
    for index, node in enumerate(trajectory.nodes):
        children.setdefault(node.parent, []).append(index)
    order, open_nodes = [], children.get(ROOT, [])[::-1]
    while open_nodes:
        order.append(open_nodes.pop())
        open_nodes += children.get(order[-1], [])[::-1]
    return order


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32)


def _row(
    trajectory: Trajectory,
    order: Sequence[int],
    trained: set[int],
    positions_T: np.ndarray,
    parent_T: np.ndarray,
    exit_T: np.ndarray,
) -> TrajectoryRow:
    nodes = [trajectory.nodes[index] for index in order]
    counts = [len(node.tokens) for node in nodes]

    def each(name: str, dtype: type) -> np.ndarray:
        return np.concatenate([np.zeros(0, dtype), *(getattr(node, name) for node in nodes)]).astype(dtype)

    is_trained_T = np.repeat([index in trained for index in order], counts).astype(np.bool_)
    versions_T = each("versions", np.int64)
    return TrajectoryRow(
        tokens=each("tokens", np.int32),
        mask=each("mask", np.bool_) & is_trained_T,
        logprobs=each("logprobs", np.float32),
        versions=versions_T,
        turns=np.repeat([node.turn for node in nodes], counts).astype(np.int32),
        temperatures=np.where(
            versions_T == NO_VERSION, 1, np.repeat([node.temperature for node in nodes], counts)
        ).astype(np.float32),
        nodes=np.repeat(order, counts).astype(np.int32),
        positions=positions_T,
        parent=parent_T,
        exit=exit_T,
    )
