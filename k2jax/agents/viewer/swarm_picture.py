"""The agents of an episode as a time line: a row for each, from left to right the steps of the critical path.

A bar is an agent at work and a thin line one that waits for others; its colour is the role. What was cut is hatched at
its end, what failed is hollow with a cross, and the critical path is outlined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from k2jax.agents.viewer.curves import nice_ticks
from k2jax.agents.viewer.markup import Html, element
from k2jax.agents.viewer.swarm_schedule import SwarmAgent
from k2jax.trajectory.types import NO_TURN, Trajectory

WIDTH = 1060
"""Width of the picture, with the columns of names and of facts."""
ROLE_COLOURS = 6
"""Colours of roles; roles beyond share the last."""
CUT = ("truncated", "unfinished")
FAILED = "masked"
_LEFT, _RIGHT, _TOP = 196, 172, 22
_TALL, _LOW, _HEIGHT = 26, 13, 1100  # of a row; of all rows where they are not the lowest already
_INDENT, _MOST_INDENT = 14, 6
_HATCHED, _WORDS = 34, 18  # width of the mark of a cut, and height of a row that has room for words
_CHARACTER, _SMALL = 6.4, 5.7  # widths of letters of names and facts
_CROSS = "✕"


def swarm_picture(agents: Sequence[SwarmAgent], link: Callable[[int], str], colours: Mapping[str, int]) -> Html:
    """The picture, as an SVG element whose rows are links.

    Args:
        agents: of ``swarm_schedule``, the orchestrator first.
        link: address of an agent's conversation.
        colours: number of the colour of a role.
    """
    row = min(_TALL, max(_LOW, _HEIGHT / len(agents)))
    scale = (WIDTH - _LEFT - _RIGHT) / max(agents[0].critical_steps, 1)
    height = _TOP + row * len(agents) + 4
    parts = [*_axis(agents, scale, height)]
    for index, agent in enumerate(agents):
        top = _TOP + row * index
        if agent.parent >= 0:
            x, above = _LEFT + scale * agent.begin, _TOP + row * (agent.parent + 0.5)
            parts.append(_line(x, x, above, top + row / 2, "spawn"))
        drawn = [element("title", about(agent)), *_row(agent, top, row, scale, colours[agent.role])]
        parts.append(element("a", *drawn, href=link(index)))
    return element("svg", *parts, viewBox=f"0 0 {WIDTH} {height:.1f}", role="img", class_="swarm")


def _axis(agents: Sequence[SwarmAgent], scale: float, height: float) -> list[Html]:
    """Numbers of steps above the rows, the last of them the critical steps of the episode."""
    parts = [element("text", "steps of the critical path", x=4, y=13, class_="tick")]
    end = agents[0].critical_steps
    ticks = [tick for tick in nice_ticks(0.0, float(max(end, 1))) if tick == int(tick) and tick < 0.95 * end]
    for tick in [*ticks, end]:
        x = _LEFT + scale * tick
        parts.append(element("text", f"{int(tick):,}", x=f"{x:.1f}", y=13, class_="tick middle"))
        parts.append(_line(x, x, _TOP - 4, height, "grid"))
    return parts


def _row(agent: SwarmAgent, top: float, row: float, scale: float, colour: int) -> list[Html]:
    middle, bar = top + row / 2, row * 0.68
    begin = _LEFT + scale * agent.begin
    indent = 6 + _INDENT * min(agent.depth, _MOST_INDENT)
    parts = [
        element("rect", x=0, y=f"{top:.1f}", width=WIDTH, height=f"{row:.1f}", class_="row"),
        element("circle", cx=indent, cy=f"{middle:.1f}", r="4", class_=f"c{colour}"),
        _text(_fitting(agent.name, (_LEFT - indent - 16) / _CHARACTER), indent + 9, middle, "name"),
        _text(_facts(agent), WIDTH - _RIGHT + 10, middle, "facts"),
    ]
    if sum(last - first for first, last in agent.work) < agent.critical_steps:
        parts.append(_line(begin, begin + scale * agent.critical_steps, middle, middle, f"wait c{colour}"))
    kinds = ["bar", f"c{colour}", *(["path"] if agent.is_critical else []), *_state(agent.status)]
    boxes = [(begin + scale * first, max(scale * (last - first), 2.0)) for first, last in agent.work]
    for left, width in boxes:
        shape = {"x": f"{left:.1f}", "width": f"{width:.1f}", "y": f"{middle - bar / 2:.1f}", "height": f"{bar:.1f}"}
        parts.append(element("rect", **shape, rx="2", class_=" ".join(kinds)))
    if boxes:
        parts += _end(agent, *boxes[-1], middle, bar)
        parts += _words(agent, *max(boxes, key=lambda box: box[1]), middle, row)
    return parts


def _state(status: str) -> list[str]:
    return ["failed"] if status == FAILED else ["cut"] if status in CUT else []


def _end(agent: SwarmAgent, left: float, width: float, middle: float, bar: float) -> list[Html]:
    """What marks the end of the work of an agent that did not come to its own."""
    right = left + width
    if agent.status in CUT:
        begin = right - min(_HATCHED, width)
        return [element("line", x1=f"{begin:.1f}", x2=f"{right:.1f}", y1=f"{middle:.1f}", y2=f"{middle:.1f}",
                        stroke_width=f"{bar:.1f}", class_="hatch")]  # fmt: skip
    return [_text(_CROSS, right + 3, middle, "cross")] if agent.status == FAILED else []


def _words(agent: SwarmAgent, left: float, width: float, middle: float, row: float) -> list[Html]:
    """The begin of what the agent was told, where its longest bar has room for some of it."""
    room = (width - 12 - (_HATCHED if agent.status in CUT else 0)) / _SMALL
    if agent.parent < 0 or room < 8 or row < _WORDS:
        return []
    words = " ".join(instruction(agent.trajectory).split())
    kind = "words failed" if agent.status == FAILED else "words"
    return [_text(_fitting(words, room), left + 6, middle, kind)] if words else []


def instruction(trajectory: Trajectory | None) -> str:
    """The first message of a user in a conversation; empty where there is none."""
    nodes = () if trajectory is None else trajectory.nodes
    for node in nodes:
        message = node.message if node.turn == NO_TURN and isinstance(node.message, Mapping) else {}
        if message.get("role") == "user":
            return _content(message.get("content"))
    return ""


def _content(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(_content(part.get("text")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def about(agent: SwarmAgent) -> str:
    """An agent in one line, then the begin of what it was told."""
    end = agent.begin + agent.critical_steps
    facts = [
        f"{agent.name}: role {agent.role}, {agent.status or 'status unknown'}",
        f"{agent.steps:,} steps from {agent.begin:,} to {end:,} of the critical path",
        f"{_tokens(agent)} sampled",
    ]
    if agent.total_steps != agent.steps:
        facts.append(f"{agent.total_steps:,} steps with its sub-agents")
    facts += ["on the critical path"] if agent.is_critical else []
    words = _fitting(" ".join(instruction(agent.trajectory).split()), 300)
    return ", ".join(facts) + (f"\n{words}" if words else "")


def _facts(agent: SwarmAgent) -> str:
    state = {"finished": "", "truncated": " · cut", "unfinished": " · unfinished", FAILED: " · failed"}
    return f"{agent.steps:,} steps · {_short(agent)}{state.get(agent.status, ' · unknown')}"


def _count(agent: SwarmAgent) -> int | None:
    if agent.trajectory is not None:
        return agent.trajectory.sampled_tokens
    return agent.link.tokens


def _short(agent: SwarmAgent) -> str:
    count = _count(agent)
    return "? tok" if count is None else f"{count:,} tok" if count < 10_000 else f"{count / 1000:,.0f}k tok"


def _tokens(agent: SwarmAgent) -> str:
    count = _count(agent)
    return "unknown tokens" if count is None else f"{count:,} tokens"


def _fitting(text: str, characters: float) -> str:
    return text if len(text) <= characters else f"{text[: max(int(characters) - 1, 1)]}…"


def _line(x1: float, x2: float, y1: float, y2: float, kind: str) -> Html:
    return element("line", x1=f"{x1:.1f}", x2=f"{x2:.1f}", y1=f"{y1:.1f}", y2=f"{y2:.1f}", class_=kind)


def _text(text: str, x: float, middle: float, kind: str) -> Html:
    return element("text", text, x=f"{x:.1f}", y=f"{middle + 3.7:.1f}", class_=kind)
