"""Filters of rejection sampling by name, and the demonstrations that pass them.

| name | a trajectory passes if |
| --- | --- |
| `finished` | its status is ``finished``: neither truncated nor masked |
| `correct_answer` | its reward is at least that of a right answer |
| `no_failed_call` | no result of a tool is an error |
| `no_duplicate_query` | the model never called the same tool twice with the same arguments |

A tool's result is an observed message of the role ``tool``. It is an error if the message, or its ``metadata``, has
``is_error`` true, or if its text begins with "error", whatever the case of its letters. Calls of tools are compared by
name and arguments, which are equal where their JSON values are, wherever in the tree the model made them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import json
from typing import Any, NamedTuple

import numpy as np

from k2jax.errors import UserError, nearest
from k2jax.trajectory.answers import is_answer
from k2jax.trajectory.flat_rows import TrajectoryRow, sequence_row
from k2jax.trajectory.types import NO_TURN, Trajectory

Filter = Callable[[Trajectory], bool]
CORRECT_REWARD = 1.0
"""Reward of a right answer, where a caller names no other."""


def finished(trajectory: Trajectory) -> bool:
    """Whether the episode came to its own end."""
    return trajectory.status == "finished"


def correct_answer(trajectory: Trajectory, correct_reward: float = CORRECT_REWARD) -> bool:
    """Whether the episode is scored, with at least ``correct_reward``."""
    return trajectory.reward is not None and trajectory.reward.value >= correct_reward


def no_failed_call(trajectory: Trajectory) -> bool:
    """Whether no tool answered with an error."""
    return not any(
        node.turn == NO_TURN and node.message is not None and _is_failure(node.message) for node in trajectory.nodes
    )


def no_duplicate_query(trajectory: Trajectory) -> bool:
    """Whether all calls of tools that the model sampled differ."""
    calls = [_canonical(call) for call in _sampled_calls(trajectory)]
    return len(set(calls)) == len(calls)


_FILTERS: dict[str, Filter] = {
    "finished": finished,
    "correct_answer": correct_answer,
    "no_failed_call": no_failed_call,
    "no_duplicate_query": no_duplicate_query,
}


def register_filter(name: str, accepts: Filter) -> None:
    """Adds a filter under a name of its own.

    Raises:
        UserError: the name is taken.
    """
    if name in _FILTERS:
        raise UserError(f"there is a trajectory filter {name!r} already; choose another name")
    _FILTERS[name] = accepts


def filter_named(name: str) -> Filter:
    """The filter of a name.

    Raises:
        UserError: there is none.
    """
    if name not in _FILTERS:
        raise UserError(f"no trajectory filter {name!r}{nearest(name, list(_FILTERS))}")
    return _FILTERS[name]


def demonstrations(
    trajectories: Iterable[Trajectory], filters: Sequence[str | Filter] = tuple(_FILTERS)
) -> Iterator[dict[str, Any]]:
    """Records for supervised fine-tuning on the trajectories that pass all filters: the ids that were sampled.

    Nothing is decoded and encoded again. A trajectory gives one record for each path to a leaf; a token that two paths
    share is trained in the first of them alone.

    Args:
        trajectories: for example of ``TrajectoryStore.read``.
        filters: names, or functions of a trajectory such as ``functools.partial(correct_answer, correct_reward=0.5)``.

    Yields:
        ``tokens`` (list of int), ``mask`` (list of bool, of the same length: what is trained on), and the
        trajectory's ``task``, ``domain``, ``key`` and ``reward``.

    Raises:
        UserError: there is no such filter.
    """
    return (path.to_json() for path in demonstrated_paths(trajectories, filters))


class DemonstratedPath(NamedTuple):
    """A path to a leaf, up to its last trained token: observations after it teach nothing.

    Attributes:
        trajectory: whose path it is.
        row: its tokens and what of them is trained on, each ``[T]``.
    """

    trajectory: Trajectory
    row: TrajectoryRow

    @property
    def written(self) -> np.ndarray:
        """Bool ``[T]``, what the model wrote, here trained on or not: a token that paths share is trained on once."""
        nodes = self.row.nodes.tolist()
        answers = {index: is_answer(self.trajectory, index) for index in set(nodes)}
        return np.array([answers[index] for index in nodes], np.bool_)

    def to_json(self) -> dict[str, Any]:
        """The record of a demonstration; see ``demonstrations``."""
        return {"tokens": self.row.tokens.tolist(), "mask": self.row.mask.tolist(), **self.trajectory.about}


def demonstrated_paths(
    trajectories: Iterable[Trajectory], filters: Sequence[str | Filter] = tuple(_FILTERS)
) -> Iterator[DemonstratedPath]:
    """The paths of the trajectories that pass all filters; a token that two share is trained in the first of them.

    Raises:
        UserError: there is no such filter.
    """
    chosen = [filter_named(accepts) if isinstance(accepts, str) else accepts for accepts in filters]
    for trajectory in trajectories:
        if not all(accepts(trajectory) for accepts in chosen):
            continue
        done: set[int] = set()
        for leaf in trajectory.leaves():
            path = trajectory.path(leaf)
            row = sequence_row(trajectory, path, [index for index in path if index not in done])
            done.update(path)
            if row.mask.any():
                yield DemonstratedPath(trajectory, row.cut(1 + int(np.flatnonzero(row.mask)[-1])))


def _sampled_calls(trajectory: Trajectory) -> Iterator[Any]:
    for node in trajectory.nodes:
        if node.turn != NO_TURN and node.message is not None:
            yield from node.message.get("tool_calls") or ()


def _canonical(call: Any) -> tuple[str, str]:
    """Name and arguments of a call; arguments that are no JSON are compared as text."""
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return str(function.get("name")), arguments
    return str(function.get("name")), json.dumps(arguments, sort_keys=True, default=str)


def _is_failure(message: Mapping[str, Any]) -> bool:
    if message.get("role") != "tool":
        return False
    metadata = message.get("metadata")
    if message.get("is_error") is True or (isinstance(metadata, Mapping) and metadata.get("is_error") is True):
        return True
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    text = "".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))
    return text.lstrip().lower().startswith("error")
