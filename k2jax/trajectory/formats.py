"""What a trajectory becomes for training, by name (KAT-Coder-V2, section 2.3.5: assemble, reorder and truncate).

| name | rows of a trajectory | a sampled token is trained |
| --- | --- | --- |
| `tree` | one, which holds every token once, depth-first | once |
| `paths` | one for each leaf: the tokens from the root to it | in every path through it |
| `turns` | one for each call of the model: its context and what it sampled | once |
| `flat` | one: the path to the last sampled node; what lies beside it is left out | at most once |

Every row is cut at its end alone: what precedes a sampled token is what it was sampled after, since its recorded
log-probability is that of no other context. Rows in which nothing is trained are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import json
from pathlib import Path
from typing import Any, Protocol

from k2jax.errors import UserError, nearest
from k2jax.trajectory.flat_rows import TrajectoryRow, depth_first, sequence_row, tree_row
from k2jax.trajectory.types import Trajectory


class TrajectoryFormat(Protocol):
    """A way to make rows of trajectories."""

    def assemble(self, trajectory: Trajectory) -> list[TrajectoryRow]:
        """The rows of a trajectory, whole."""
        ...

    def reorder(self, rows: list[TrajectoryRow]) -> list[TrajectoryRow]:
        """The same rows in the order in which they are trained on."""
        ...

    def truncate(self, row: TrajectoryRow, length: int) -> TrajectoryRow:
        """A row of at most ``length`` tokens."""
        ...


class _Format:
    """What the four formats share: rows stay in the order in which they were recorded and are cut at their end."""

    def reorder(self, rows: list[TrajectoryRow]) -> list[TrajectoryRow]:
        return rows

    def truncate(self, row: TrajectoryRow, length: int) -> TrajectoryRow:
        return row if len(row.tokens) <= length else row.cut(length)


class _Tree(_Format):
    def assemble(self, trajectory: Trajectory) -> list[TrajectoryRow]:
        return [tree_row(trajectory, depth_first(trajectory))]


class _Paths(_Format):
    def assemble(self, trajectory: Trajectory) -> list[TrajectoryRow]:
        paths = (trajectory.path(leaf) for leaf in trajectory.leaves())
        return [sequence_row(trajectory, path, path) for path in paths]

    def reorder(self, rows: list[TrajectoryRow]) -> list[TrajectoryRow]:
        """Depth-first: rows that share a prefix are neighbours, so that a cache of prefixes serves them."""
        return sorted(rows, key=lambda row: list(dict.fromkeys(row.nodes.tolist())))


class _Turns(_Format):
    def assemble(self, trajectory: Trajectory) -> list[TrajectoryRow]:
        sampled = [index for index, node in enumerate(trajectory.nodes) if node.mask.any()]
        return [sequence_row(trajectory, trajectory.path(index), [index]) for index in sampled]

    def reorder(self, rows: list[TrajectoryRow]) -> list[TrajectoryRow]:
        """Sorts rows by the number of the call."""
        return sorted(rows, key=lambda row: row.turns[-1] if len(row.turns) else 0)


class _Flat(_Format):
    def assemble(self, trajectory: Trajectory) -> list[TrajectoryRow]:
        sampled = [index for index, node in enumerate(trajectory.nodes) if node.mask.any()]
        path = trajectory.path(sampled[-1]) if sampled else []
        return [sequence_row(trajectory, path, path)]


_FORMATS: dict[str, TrajectoryFormat] = {"tree": _Tree(), "paths": _Paths(), "turns": _Turns(), "flat": _Flat()}


def register_format(name: str, trajectory_format: TrajectoryFormat) -> None:
    """Adds a format under a name of its own.

    Raises:
        UserError: the name is taken.
    """
    if name in _FORMATS:
        raise UserError(f"there is a trajectory format {name!r} already; choose another name")
    _FORMATS[name] = trajectory_format


def format_named(name: str) -> TrajectoryFormat:
    """The format of a name.

    Raises:
        UserError: there is none.
    """
    if name not in _FORMATS:
        raise UserError(f"no trajectory format {name!r}{nearest(name, list(_FORMATS))}")
    return _FORMATS[name]


def format_rows(trajectory: Trajectory, name: str, length: int | None = None) -> list[TrajectoryRow]:
    """The rows of a trajectory in a format: assembled, reordered, truncated; those that train nothing are left out.

    Args:
        trajectory: the trajectory.
        name: of the format.
        length: tokens of a row at most; None for no limit.

    Raises:
        UserError: there is no such format.
    """
    chosen = format_named(name)
    ordered = chosen.reorder(chosen.assemble(trajectory))
    cut = ordered if length is None else [chosen.truncate(row, length) for row in ordered]
    return [row for row in cut if row.mask.any()]


def exported(trajectories: Iterable[Trajectory], name: str, length: int | None = None) -> Iterator[dict[str, Any]]:
    """The rows of trajectories as JSON objects: the row's arrays and its trajectory's task, domain, key and reward.

    Raises:
        UserError: there is no such format.
    """
    for trajectory in trajectories:
        for row in format_rows(trajectory, name, length):
            yield trajectory.about | {"status": trajectory.status} | row.to_json()


def write_jsonl(path: Path | str, records: Iterable[dict[str, Any]]) -> int:
    """Writes records as JSON lines, one at a time in memory, and returns their number.

    Raises:
        UserError: a record has a value that JSON does not know, such as a log-probability that is not finite.
    """
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for record in records:
            try:
                line = json.dumps(record, allow_nan=False)
            except ValueError as error:
                raise UserError(
                    f"record {count} of {path} is not JSON ({error}); see k2jax.trajectory.verify"
                ) from None
            file.write(f"{line}\n")
            count += 1
    return count
