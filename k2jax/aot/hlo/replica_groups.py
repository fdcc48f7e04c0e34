"""The devices that a collective connects, as XLA prints them, and the mesh axes along which they lie."""

from __future__ import annotations

from collections.abc import Sequence
import itertools
import math
import re

import numpy as np

Groups = tuple[tuple[int, ...], ...]

_LISTS = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=@?mesh[\[<]([^\]>]*)[\]>](?:, device_ids=\(([^{}]*?)\))? \{([^}]*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_ORDER = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")


def replica_groups(attributes: str, devices: int) -> Groups:
    """The groups of a collective, or its (source, target) pairs.

    Args:
        attributes: as printed after its operands. Groups are listed, ``{{0,1},{2,3}}``, or described by transposing
            numbered devices, ``[2,2]<=[4]`` or ``[2,2]<=[2,2]T(1,0)``, or as axes of a mesh of XLA's own,
            ``mesh['a'=2,'b'=2] {'a'}``, whose axes may be cut: ``'a':(1)2`` are the outer 2 of it.
        devices: all of them form one group where none is listed.

    Raises:
        ValueError: no groups, or in another form.
    """
    if match := _PAIRS.search(attributes) or _LISTS.search(attributes):
        listed = [tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", match[1])]
        return tuple(listed) or (tuple(range(devices)),)
    if match := _IOTA.search(attributes):
        sides, permutation = _ints(match[2]), _ints(match[3] or "")
        return _rows(_ordered(sides, permutation).reshape(_ints(match[1])))
    if match := _MESH.search(attributes):
        return _mesh_groups(*match.groups())
    raise ValueError(f"no replica groups in {attributes[:200]!r}")


def _mesh_groups(axes: str, order: str | None, grouped: str) -> Groups:
    sizes = [(name, int(size)) for name, size in re.findall(r"'?(\w+)'?=(\d+)", axes)]
    total = math.prod(size for _, size in sizes)
    if order and (match := _ORDER.fullmatch(order)):
        numbers = _ordered(_ints(match[1]), _ints(match[2] or ""))
    else:
        numbers = np.array(_ints(order)) if order else np.arange(total)
    chosen: dict[str, list[tuple[int, int]]] = {}
    for name, before, size in re.findall(r"'?(\w+)'?(?::\((\d+)\)(\d+))?(?:,|$)", grouped):
        chosen.setdefault(name, []).append((int(before), int(size)) if size else (1, dict(sizes)[name]))
    sides, gathered = [], []
    for name, size in sizes:
        done = 1
        for before, part in sorted(chosen.get(name, [])):
            sides += [before // done, part]
            gathered.append(len(sides) - 1)
            done = before * part
        sides.append(size // done)
    rest = [axis for axis in range(len(sides)) if axis not in gathered]
    members = math.prod(sides[axis] for axis in gathered)
    return _rows(numbers.reshape(sides).transpose(rest + gathered).reshape(-1, members))


def _ordered(sides: list[int], permutation: list[int]) -> np.ndarray:
    numbers = np.arange(math.prod(sides)).reshape(sides)
    return (numbers.transpose(permutation) if permutation else numbers).reshape(-1)


def _rows(groups: np.ndarray) -> Groups:
    return tuple(tuple(row) for row in groups.tolist())


def _ints(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number.strip()]


def mesh_axes(groups: Groups, shape: Sequence[tuple[str, int]]) -> str:
    """The axes along which a group's devices lie, ``data`` or ``data+expert``; ``?`` is added for a part of them.

    Args:
        groups: from ``replica_groups``, numbered in the order of the mesh.
        shape: name and size of every axis, in order.
    """
    sides = [size for _, size in shape]
    places = np.array(np.unravel_index(list(itertools.chain(*groups)), sides)).T
    starts = np.cumsum([0, *map(len, groups[:-1])])
    of_group = np.split(places, starts[1:])
    varying = [axis for axis in range(len(sides)) if any(len(set(part[:, axis])) > 1 for part in of_group)]
    names = "+".join(shape[axis][0] for axis in varying) or "none"
    whole = math.prod(sides[axis] for axis in varying)
    pairs = all(len(group) == 2 for group in groups)
    return names if pairs or all(len(group) == whole for group in groups) else names + "?"
