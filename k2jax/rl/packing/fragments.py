"""Responses to train on as fragments, each a forest of token trees that fits a row.

In the layout ``tree`` the paths of a group are sorted, so that those with a common prefix are neighbours: a prefix that
a path shares with the one before it is stored once. That is the order of a depth-first walk through the tree of all
paths. A group that is larger than a row is cut between paths; the first path behind a cut is stored whole again, so
that every fragment holds what its tokens were sampled behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from k2jax.config.schema import PackingLayout
from k2jax.rl.packing.training_paths import TrainingPath, TrainingResponse


class RowSize(NamedTuple):
    """What a row has room for, or something takes of it.

    Attributes:
        tokens: tokens.
        turns: entries in the table of turns.
        responses: entries in the table of responses.
        patches: patches of images; an image counts once for each fragment that shows it.
    """

    tokens: int
    turns: int
    responses: int
    patches: int = 0

    def plus(self, other: RowSize) -> RowSize:
        """Both together."""
        return RowSize(*(a + b for a, b in zip(self, other, strict=True)))

    def fits(self, room: RowSize) -> bool:
        """Whether a row of that size has room for it."""
        return all(a <= b for a, b in zip(self, room, strict=True))


class PlacedPath(NamedTuple):
    """A path in a fragment.

    Attributes:
        path: the path.
        response: that its tokens count in.
        shared: number of its first tokens that it shares with the path before it, and that are not stored again.
    """

    path: TrainingPath
    response: TrainingResponse
    shared: int


class Fragment(NamedTuple):
    """Paths of one group that go into one row.

    Attributes:
        paths: in the order in which they are stored.
        size: what they take of a row.
    """

    paths: list[PlacedPath]
    size: RowSize


def fragments(
    responses: Sequence[TrainingResponse], layout: PackingLayout, room: RowSize, *, splits_responses: bool
) -> tuple[list[Fragment], list[TrainingResponse]]:
    """The responses as fragments, and those of which a path, or all paths where they may not be split, fit no row.

    Args:
        responses: those of one group are in one piece.
        layout: ``paths`` stores every path by itself, and each response is a fragment; ``tree`` stores what the paths
            of a group share once.
        room: the size of a row.
        splits_responses: whether the paths of a response that is larger than a row may go into several. Their tokens
            and turns are then all there, but no row has the response's whole sum.
    """
    of_responses = [(response, _units(response, layout, room, splits_responses)) for response in responses]
    units = [unit for _, of_response in of_responses for unit in of_response]
    too_large = [response for response, of_response in of_responses if not of_response]
    if layout == "paths":
        return [_fragment(unit, layout) for unit in units], too_large
    groups: dict[tuple[int, int], list[_Unit]] = {}
    for unit in units:
        groups.setdefault(unit.response.group, []).append(unit)
    cut = [fragment for group in groups.values() for fragment in _cut(sorted(group, key=_first_bytes), room)]
    return cut, too_large


class _Unit(NamedTuple):
    """Paths of a response that stay together."""

    response: TrainingResponse
    paths: list[TrainingPath]


def _units(response: TrainingResponse, layout: PackingLayout, room: RowSize, splits_responses: bool) -> list[_Unit]:
    """What of a response stays together; nothing where that is larger than a row."""
    paths = sorted(response.paths, key=_path_bytes) if layout == "tree" else response.paths
    whole, single = [_Unit(response, paths)], [_Unit(response, [path]) for path in paths]
    for units in (whole, single) if splits_responses else (whole,):
        if all(_fragment(unit, layout).size.fits(room) for unit in units):
            return units
    return []


def _cut(units: Iterable[_Unit], room: RowSize) -> Iterator[Fragment]:
    """Fragments as full as they come, each of consecutive units."""
    fragment = None
    for unit in units:
        longer = None if fragment is None else _joined(fragment, unit)
        if longer is None or not longer.size.fits(room):
            if fragment is not None:
                yield fragment
            longer = _fragment(unit, "tree")
        fragment = longer
    if fragment is not None:
        yield fragment


def _joined(fragment: Fragment, unit: _Unit) -> Fragment:
    more = _fragment(unit, "tree", fragment.paths[-1].path)
    return Fragment(fragment.paths + more.paths, fragment.size.plus(more.size))


def _fragment(unit: _Unit, layout: PackingLayout, before: TrainingPath | None = None) -> Fragment:
    placed = []
    for path in unit.paths:
        shared = _common_prefix(before, path) if layout == "tree" and before is not None else 0
        placed.append(PlacedPath(path, unit.response, shared))
        before = path
    tokens = sum(len(each.path) - each.shared for each in placed)
    known = set() if before is None or layout != "tree" else {each.digest for each in before.media}
    images = {each.digest: each.chunk.patches for path in unit.paths for each in path.media}
    patches = sum(size for digest, size in images.items() if digest not in known)
    return Fragment(placed, RowSize(tokens, sum(len(path.turns) for path in unit.paths), 1, patches))


def _common_prefix(a: TrainingPath, b: TrainingPath) -> int:
    length = min(len(a), len(b))
    equal_T = (a.record_TN[:length] == b.record_TN[:length]).all(1)
    return length if equal_T.all() else int(np.argmin(equal_T))


def _path_bytes(path: TrainingPath) -> bytes:
    return path.record_TN.tobytes()


def _first_bytes(unit: _Unit) -> bytes:
    return _path_bytes(unit.paths[0])
