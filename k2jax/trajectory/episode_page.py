"""One trajectory as HTML: its reward, and the tokens of its tree as boxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import json
from typing import Any

import numpy as np

from k2jax.trajectory.consistency import verify
from k2jax.trajectory.markup import Html, element
from k2jax.trajectory.rows import depth_first
from k2jax.trajectory.types import NO_TURN, NO_VERSION, ROOT, Node, Trajectory

Decode = Callable[[int], str]
"""Gives the text of a token id."""
SHADES = (0.01, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Upper bounds of -log-probability of the boxes' shades but the last [nats]."""
_MOST_INDENT = 6


def episode(trajectory: Trajectory, number: int, decode: Decode | None) -> Html:
    """A trajectory as an element.

    Args:
        trajectory: to show.
        number: by which the page's links name it.
        decode: gives the text of a token; None shows no tokens.
    """
    step, prompt, sample = trajectory.key
    heading = element(
        "header",
        element("h2", trajectory.task),
        element("span", trajectory.domain, class_="tag"),
        element("span", trajectory.status, class_=f"tag {trajectory.status}"),
        element("span", f"iteration {step} · prompt {prompt} · sample {sample}", class_="soft"),
        element("a", "overview", href="#overview", class_="back"),
    )
    problems = [element("p", f"inconsistent: {line}", class_="alert") for line in verify(trajectory)]
    if trajectory.error:
        problems.append(element("p", trajectory.error, class_="alert"))
    body = [heading, *problems, _verdict(trajectory), _figures(trajectory)]
    if decode is None:
        body.append(
            element("p", "The tokens are left out of this page: raise --tokens, or name its prompt.", class_="soft")
        )
    else:
        body += _tree(trajectory, decode)
    if trajectory.metadata:
        body.append(_details("metadata", trajectory.metadata))
    return element("article", *body, id=f"e{number}", class_="episode")


def _verdict(trajectory: Trajectory) -> Html:
    reward = trajectory.reward
    if reward is None:
        return element("div", element("strong", "not scored"), class_="verdict")
    parts = [
        element("tr", element("th", name), element("td", f"{value + 0.0:g}", class_="number"))
        for name, value in reward.parts.items()
    ]
    return element(
        "div",
        element("div", element("small", "reward"), element("strong", f"{reward.value + 0.0:g}"), class_="reward"),
        element("table", *parts) if parts else "",
        _details("verdict", reward.info, is_open=True) if reward.info else "",
        class_="verdict",
    )


def _figures(trajectory: Trajectory) -> Html:
    sampled = [node for node in trajectory.nodes if (node.versions != NO_VERSION).any()]
    logprobs = np.concatenate([np.zeros(0), *(node.logprobs[node.versions != NO_VERSION] for node in sampled)])
    figures = {
        "tokens sampled": f"{len(logprobs):,}",
        "tokens in all": f"{sum(len(node.tokens) for node in trajectory.nodes):,}",
        "calls of the model": f"{len({node.turn for node in sampled}):,}",
        "leaves": f"{len(trajectory.leaves()):,}",
    }
    if sampled:
        figures |= {
            "mean -log p [nats]": f"{-logprobs.mean():.3f}",
            "versions": _span(np.concatenate([node.versions[node.versions != NO_VERSION] for node in sampled])),
            "temperature": ", ".join(dict.fromkeys(f"{node.temperature:g}" for node in sampled)),
        }
    items = [element("div", element("dt", name), element("dd", value)) for name, value in figures.items()]
    return element("dl", *items, class_="figures")


def _tree(trajectory: Trajectory, decode: Decode) -> list[Html]:
    """The nodes depth-first; where several nodes follow one, they stand indented below it."""
    children = np.bincount([node.parent + 1 for node in trajectory.nodes], minlength=1)
    indents: dict[int, int] = {ROOT: 0}
    cards = []
    for index in depth_first(trajectory):
        parent = trajectory.nodes[index].parent
        indents[index] = min(indents[parent] + int(children[parent + 1] > 1), _MOST_INDENT)
        cards.append(_card(trajectory, index, indents[index], decode))
    return cards


def _card(trajectory: Trajectory, index: int, indent: int, decode: Decode) -> Html:
    node = trajectory.nodes[index]
    is_sampled = node.turn != NO_TURN
    role = node.message.get("role") if isinstance(node.message, Mapping) else None
    facts = [f"turn {node.turn}" if is_sampled else "observed", f"{len(node.tokens):,} tokens"]
    if is_sampled:
        facts += [f"version {_span(node.versions[node.versions != NO_VERSION])}", f"temperature {node.temperature:g}"]
        facts.append(node.finish or "no finish reason")
    if is_sampled and not node.mask.all():
        facts.append(f"{int((~node.mask).sum()):,} not trained")
    if node.parent != index - 1:
        facts.append("begins anew" if node.parent == ROOT else f"follows node {node.parent}")
    title = element(
        "h3",
        f"{index} ",
        element("b", role or ("model" if is_sampled else "tokens")),
        element("span", " · ".join(facts)),
    )
    message = [] if node.message is None else [_details("message", node.message)]
    kind = "sampled" if is_sampled else "observed"
    return element("section", title, tokens(node, decode), *message, class_=f"node {kind} i{indent}")


def tokens(node: Node, decode: Decode) -> Html:
    """The tokens of a node as boxes; what was sampled is shaded by -log-probability, a new version is announced."""
    boxes, version = [], NO_VERSION
    columns = (node.tokens.tolist(), node.mask.tolist(), node.logprobs.tolist(), node.versions.tolist())
    for place, (token, trained, logprob, now) in enumerate(zip(*columns, strict=True)):
        if now not in (version, NO_VERSION):
            boxes.append(element("i", f"v{now}"))
            version = now
        text = decode(token)
        shown = text.replace("\n", "↵\n").replace("\t", "⇥\t") or "∅"
        if now == NO_VERSION:
            boxes.append(element("s", shown, title=f"token {place}, id {token}, not sampled"))
        else:
            chance = f"-log p {0.0 - logprob:.3f} nats (p {np.exp(min(logprob, 0)):.3f})"
            about = f"token {place}, id {token}, {chance}, version {now}"
            shade = f"b{int(np.searchsorted(SHADES, -logprob))}" if np.isfinite(logprob) else "bad"
            note = "" if trained else ", not trained"
            boxes.append(element("s", shown, title=about + note, class_=shade if trained else f"{shade} off"))
    return element("p", *boxes, class_="tokens")


def legend() -> Html:
    """What the boxes of tokens mean."""
    labels = [f"≤ {SHADES[0]:g}", *[f"> {bound:g}" for bound in SHADES]]
    shades = [element("s", label, class_=f"b{index}") for index, label in enumerate(labels)]
    others = [element("s", "observed"), element("s", "sampled, not trained", class_="b2 off"), element("i", "v4")]
    return element(
        "p",
        "-log p [nats] ",
        *shades,
        " ",
        *others,
        " a new version of the weights begins",
        class_="tokens legend-line",
    )


def _details(title: str, values: Mapping[str, Any], is_open: bool | None = None) -> Html:
    text = json.dumps(values, indent=2, ensure_ascii=False, default=str)
    return element("details", element("summary", title), element("pre", text), open=is_open)


def _span(versions: np.ndarray) -> str:
    if not len(versions):
        return "—"
    low, high = int(versions.min()), int(versions.max())
    return f"{low}" if low == high else f"{low} to {high}"
