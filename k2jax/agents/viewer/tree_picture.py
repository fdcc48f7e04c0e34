"""A trajectory's tree as a picture: nodes from left to right in order of their tokens, a row for each path.

A node is as wide as it has tokens, and as high as there are paths through it: what is high is shared. The area is what
training would compute without sharing; one row of it is what training on the tree computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from k2jax.agents.viewer.markup import Html, element
from k2jax.agents.viewer.token_boxes import NodeMarks
from k2jax.trajectory.flat_rows import depth_first
from k2jax.trajectory.types import NO_TURN, ROOT, Trajectory

WIDTH = 1060
"""Width of the picture, with the column of the paths' lengths."""
_GUTTER = 74
_GAP = 3.0  # between nodes, where rows are not too low for it
_NARROWEST, _HIGHEST, _LOWEST, _HEIGHT = 26, 32, 6, 520
_CHARACTER, _TEXT_HEIGHT = 6.3, 14  # of a label
_TICK = 6  # height of the mark of a token


class TreeOutline(NamedTuple):
    """Where the nodes of a tree lie.

    Attributes:
        order: nodes depth-first.
        first_path: of every node, the number of the first path through it, counted depth-first.
        paths: of every node, the number of paths through it.
        forks: of every node, the number of forks before it on its path.
        depth: of every node, the tokens before it on its path.
    """

    order: list[int]
    first_path: list[int]
    paths: list[int]
    forks: list[int]
    depth: list[int]

    @property
    def path_count(self) -> int:
        """Number of paths from a root to a leaf."""
        return max((first + count for first, count in zip(self.first_path, self.paths, strict=True)), default=0)


def outline_of(trajectory: Trajectory) -> TreeOutline:
    """The shape of a trajectory's tree; several roots are a fork before all tokens."""
    nodes, order = trajectory.nodes, depth_first(trajectory)
    children = np.bincount([node.parent + 1 for node in nodes], minlength=len(nodes) + 1)
    first, paths, forks, depth = ([0] * len(nodes) for _ in range(4))
    leaves = 0
    for index in order:
        parent = nodes[index].parent
        forks[index] = (0 if parent == ROOT else forks[parent]) + int(children[parent + 1] > 1)
        depth[index] = 0 if parent == ROOT else depth[parent] + len(nodes[parent].tokens)
        first[index] = leaves
        leaves += int(children[index + 1] == 0)
    for index in reversed(order):
        paths[index] = max(paths[index], 1)
        if nodes[index].parent != ROOT:
            paths[nodes[index].parent] += paths[index]
    return TreeOutline(order, first, paths, forks, depth)


def tree_picture(
    trajectory: Trajectory, shape: TreeOutline, link: Callable[[int], str], marks: Mapping[int, NodeMarks]
) -> Html:
    """The picture, as an SVG element whose nodes are links.

    Args:
        trajectory: at least one node.
        shape: of its tree.
        link: address of a node.
        marks: what training left out, by node.
    """
    row = min(_HIGHEST, max(_LOWEST, _HEIGHT / shape.path_count))
    left, width = _columns(trajectory, shape)
    parts = []
    for index in shape.order:
        box = _Box(
            left[index], shape.first_path[index] * row, width[index], shape.paths[index] * row - min(_GAP, row / 4)
        )
        drawn = [_rectangle(trajectory, index, box), *_ticks(trajectory, index, box, marks.get(index, NodeMarks()))]
        title = element("title", _about(trajectory, index, shape))
        parts.append(element("a", title, *drawn, href=link(index)))
    if row >= _TEXT_HEIGHT:
        parts += [_length(trajectory, shape, leaf, left[leaf] + width[leaf], row) for leaf in trajectory.leaves()]
    height = shape.path_count * row
    return element("svg", *parts, viewBox=f"0 0 {WIDTH} {height:.1f}", role="img", class_="tree")


class _Box(NamedTuple):
    left: float
    top: float
    width: float
    height: float


def _columns(trajectory: Trajectory, shape: TreeOutline) -> tuple[list[float], list[float]]:
    """Left edges and widths of nodes: by tokens, but none too narrow to see and to point at."""
    nodes, room = trajectory.nodes, WIDTH - _GUTTER
    on_path = [1] * len(nodes)
    for index in shape.order:
        if (parent := nodes[index].parent) != ROOT:
            on_path[index] += on_path[parent]
    longest = max(depth + len(node.tokens) for depth, node in zip(shape.depth, nodes, strict=True))
    narrowest = min(_NARROWEST, room / max(on_path))
    scale = (room - max(on_path) * narrowest) / max(longest, 1)
    width = [narrowest + scale * len(node.tokens) for node in nodes]
    left = [0.0] * len(nodes)
    for index in shape.order:
        if (parent := nodes[index].parent) != ROOT:
            left[index] = left[parent] + width[parent]
    return left, width


def _rectangle(trajectory: Trajectory, index: int, box: _Box) -> Html:
    node = trajectory.nodes[index]
    kind = "observed" if node.turn == NO_TURN else "model"
    high = max(box.height, 1.0)
    shape = {"x": f"{box.left:.1f}", "y": f"{box.top:.1f}", "width": f"{box.width - _GAP:.1f}", "height": f"{high:.1f}"}
    rectangle = element("rect", **shape, rx="4", class_=kind)
    name = f"{index}" if node.turn == NO_TURN else f"{index} · turn {node.turn}"
    count = f"{len(node.tokens):,}"
    labels = [f"{name} · {count} tokens", f"{name} · {count}", name, name.replace("turn ", "t"), f"{index}"]
    fitting = [label for label in labels if len(label) * _CHARACTER < box.width - 12]
    if not fitting or high < _TEXT_HEIGHT:
        return rectangle
    place = {"x": f"{box.left + 7:.1f}", "y": f"{box.top + high / 2 + 4:.1f}"}
    return Html(rectangle + element("text", fitting[0], **place, class_=kind))


def _ticks(trajectory: Trajectory, index: int, box: _Box, marks: NodeMarks) -> list[Html]:
    """Lines where tokens were clipped or zeroed, one for each pixel at most."""
    count, lines = max(len(trajectory.nodes[index].tokens), 1), []
    clipped = range(count) if marks.turn_ratio is not None else marks.clipped
    high, bottom = min(_TICK, box.height / 2), box.top + max(box.height, 1.0)
    for places, name, top in ((clipped, "clipped", bottom - high), (marks.zeroed, "zeroed", box.top)):
        pixels = {round(box.left + (box.width - _GAP) * (place + 0.5) / count) for place in places if place < count}
        ends = {"y1": f"{top:.1f}", "y2": f"{top + high:.1f}"}
        lines += [element("line", x1=x, x2=x, **ends, class_=name) for x in sorted(pixels)]
    return lines


def _length(trajectory: Trajectory, shape: TreeOutline, leaf: int, right: float, row: float) -> Html:
    total = shape.depth[leaf] + len(trajectory.nodes[leaf].tokens)
    y = (shape.first_path[leaf] + 0.5) * row + 3
    return element("text", f"{total:,}", x=f"{right + 4:.1f}", y=f"{y:.1f}", class_="tick")


def _about(trajectory: Trajectory, index: int, shape: TreeOutline) -> str:
    node, paths = trajectory.nodes[index], shape.paths[index]
    kind = "observed" if node.turn == NO_TURN else f"turn {node.turn}"
    begins = "begins the episode" if node.parent == ROOT else f"follows node {node.parent}"
    shared = f"shared by {paths:,} paths" if paths > 1 else "on one path"
    return f"node {index}: {kind}, {len(node.tokens):,} tokens after {shape.depth[index]:,}, {begins}, {shared}"
