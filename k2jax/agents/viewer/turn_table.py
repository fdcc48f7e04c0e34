"""The turns of an episode as a table: each call of the model, what it read and what it sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from k2jax.agents.viewer.markup import Html, element, joined
from k2jax.agents.viewer.token_boxes import NodeMarks
from k2jax.agents.viewer.tree_picture import TreeOutline
from k2jax.trajectory.types import NO_TURN, NO_VERSION, Trajectory

_COLUMNS = ("turn", "node", "reads", "samples", "mean -log p", "version", "temperature", "ends by")
_MARKED = ("clipped", "zeroed")
_RATIO = "ratio"
_MAX_OPEN = 12  # rows of a table that is shown without a click


def turn_table(
    trajectory: Trajectory, shape: TreeOutline, link: Callable[[int], str], marks: Mapping[int, NodeMarks]
) -> Html:
    """A row for each sampled node in order of turns; empty for an episode of one turn.

    Args:
        trajectory: the episode.
        shape: of its tree.
        link: address of a node.
        marks: what training left out, by node; empty where nothing was recorded.
    """
    calls = [index for index, node in enumerate(trajectory.nodes) if node.turn != NO_TURN]
    if len(calls) < 2:
        return joined(())
    by_turns = any(each.turn_ratio is not None for each in marks.values())
    names = _COLUMNS + (_MARKED if marks else ()) + ((_RATIO,) if by_turns else ())
    rows = [element("tr", *[element("th", name) for name in names])]
    for index in sorted(calls, key=lambda index: trajectory.nodes[index].turn):
        node = trajectory.nodes[index]
        sampled = node.versions != NO_VERSION
        mean = f"{-float(node.logprobs[sampled].mean()):.3f}" if sampled.any() else "—"
        cells = [
            element("b", f"{node.turn}"),
            element("a", f"node {index}", href=link(index), class_="back"),
            f"{shape.depth[index]:,}",
            f"{len(node.tokens):,}",
            mean,
            span(node.versions[sampled]),
            f"{node.temperature:g}",
            node.finish or "—",
        ]
        if marks:
            own = marks.get(index, NodeMarks())
            cells += [f"{len(own.clipped):,}", f"{len(own.zeroed):,}"]
            cells += ["—" if own.turn_ratio is None else f"clipped at {own.turn_ratio:.3g}"] if by_turns else []
        rows.append(element("tr", *[element("td", cell) for cell in cells]))
    units = element("span", f"{len(calls):,} calls of the model; tokens read and sampled, nats")
    heading = element("summary", element("b", "Turns"), units)
    is_open = True if len(calls) <= _MAX_OPEN else None
    table = element("table", *rows, class_="turns")
    return element("details", heading, table, class_="card wide", open=is_open)


def span(versions: np.ndarray) -> str:
    """The versions of some tokens ``[T]`` as text: one, or the lowest and the highest."""
    if not len(versions):
        return "—"
    low, high = int(versions.min()), int(versions.max())
    return f"{low}" if low == high else f"{low} to {high}"
