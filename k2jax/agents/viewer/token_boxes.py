"""The tokens of a node as boxes: how likely they were, where turns and versions begin, what training left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from k2jax.agents.viewer.markup import Html, element
from k2jax.trajectory.types import NO_TURN, NO_VERSION, Node

Decode = Callable[[int], str]
"""Gives the text of a token id."""
SHADES = (0.01, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Upper bounds of -log-probability of the boxes' shades but the last [nats]."""


class NodeMarks(NamedTuple):
    """What training left out of one node.

    Attributes:
        clipped: ratio of tokens outside the trust region, by place.
        zeroed: k of tokens outside IcePop's band, by place.
        turn_ratio: of the whole turn, where a loss over turns clipped it.
    """

    clipped: Mapping[int, float] = {}
    zeroed: Mapping[int, float] = {}
    turn_ratio: float | None = None


def tokens(node: Node, decode: Decode, marks: NodeMarks = NodeMarks()) -> Html:  # noqa: B008 (immutable)
    """The tokens of a node; what was sampled is shaded by -log-probability.

    Args:
        node: whose tokens are shown.
        decode: gives the text of a token.
        marks: of training.
    """
    boxes, version = [], NO_VERSION
    if node.turn != NO_TURN:
        boxes.append(element("i", f"turn {node.turn}", class_="turn"))
    columns = (node.tokens.tolist(), node.mask.tolist(), node.logprobs.tolist(), node.versions.tolist())
    for place, (token, trained, logprob, now) in enumerate(zip(*columns, strict=True)):
        if now not in (version, NO_VERSION):
            boxes.append(element("i", f"v{now}"))
            version = now
        text = decode(token)
        shown = text.replace("\n", "↵\n").replace("\t", "⇥\t") or "∅"
        if now == NO_VERSION:
            boxes.append(element("s", shown, title=f"token {place}, id {token}, not sampled"))
            continue
        chance = f"-log p {0.0 - logprob:.3f} nats (p {np.exp(min(logprob, 0)):.3f})"
        words, classes = _marked(place, marks) if trained else ([", not trained"], ["off"])
        shade = f"b{int(np.searchsorted(SHADES, -logprob))}" if np.isfinite(logprob) else "bad"
        about = "".join([f"token {place}, id {token}, {chance}, version {now}", *words])
        boxes.append(element("s", shown, title=about, class_=" ".join([shade, *classes])))
    return element("p", *boxes, class_="tokens")


def _marked(place: int, marks: NodeMarks) -> tuple[list[str], list[str]]:
    """Words and classes of what training left out of a token."""
    words, classes = [], []
    if place in marks.clipped:
        words.append(f", clipped at the ratio {marks.clipped[place]:.3g}")
        classes.append("clip")
    if marks.turn_ratio is not None:
        words.append(f", in a turn clipped at the ratio {marks.turn_ratio:.3g}")
        classes += [] if classes else ["clip"]
    if place in marks.zeroed:
        words.append(f", zeroed by IcePop at k {marks.zeroed[place]:.3g}")
        classes.append("zero")
    return words, classes


def legend() -> Html:
    """What the boxes of tokens mean."""
    labels = [f"≤ {SHADES[0]:g}", *[f"> {bound:g}" for bound in SHADES]]
    shades = [element("s", label, class_=f"b{index}") for index, label in enumerate(labels)]
    others = [
        element("s", "observed"),
        element("s", "sampled, not trained", class_="b2 off"),
        element("s", "clipped by the trust region", class_="b1 clip"),
        element("s", "zeroed by IcePop", class_="b1 zero"),
    ]
    marks = [element("i", "turn 2", class_="turn"), " a call of the model begins ", element("i", "v4")]
    return element(
        "p",
        *["-log p [nats] ", *shades, " ", *others, " ", *marks],
        " a new version of the weights begins",
        class_="tokens legend-line",
    )
