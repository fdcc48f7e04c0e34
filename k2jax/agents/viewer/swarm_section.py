"""An agent and its sub-agents as HTML: figures, the time line, and what its marks mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from k2jax.agents.viewer.markup import Html, element
from k2jax.agents.viewer.swarm_picture import CUT, FAILED, ROLE_COLOURS, swarm_picture
from k2jax.agents.viewer.swarm_schedule import SwarmAgent

MOST_AGENTS = 400
"""Rows of a time line; a page says how many agents it leaves out."""


def swarm_card(agents: Sequence[SwarmAgent], link: Callable[[int], str]) -> Html:
    """The card of an episode with sub-agents.

    Args:
        agents: of ``swarm_schedule``, at least two.
        link: address of an agent's conversation.
    """
    shown = agents[:MOST_AGENTS]
    roles = list(dict.fromkeys(agent.role for agent in shown))
    colours = {role: min(index, ROLE_COLOURS - 1) for index, role in enumerate(roles)}
    heading = element("h3", "Agents ", element("span", "a row leads to the agent's conversation", class_="hint"))
    parts = [heading, _figures(agents), swarm_picture(shown, link, colours), _legend(shown, colours)]
    if len(shown) < len(agents):
        parts.append(element("p", f"{len(agents) - len(shown):,} more sub-agents are left out", class_="soft"))
    return element("div", *parts, class_="card")


def _figures(agents: Sequence[SwarmAgent]) -> Html:
    main, below = agents[0], agents[1:]
    cut = sum(agent.status in CUT for agent in below)
    failed = sum(agent.status == FAILED for agent in below)
    names = len({(agent.parent, agent.name) for agent in below})
    figures = {
        "steps of all agents": f"{main.total_steps:,}",
        "critical steps": f"{main.critical_steps:,}",
        "parallelism": f"{main.parallelism:.2f}",
        "sub-agents": f"{names:,}",
        "assignments": f"{len(below):,}",
        "finished": f"{sum(agent.status == 'finished' for agent in below):,}",
        "at work at a time": f"{main.peak:,}",
    }
    figures |= {"cut by a budget": f"{cut:,}"} if cut else {}
    figures |= {"failed": f"{failed:,}"} if failed else {}
    items = [element("div", element("dt", name), element("dd", value)) for name, value in figures.items()]
    return element("dl", *items, class_="figures")


def _legend(shown: Sequence[SwarmAgent], colours: dict[str, int]) -> Html:
    items = [
        element("li", element("span", class_=f"swatch c{colour}"), f"role {role}") for role, colour in colours.items()
    ]
    items.append(element("li", element("span", class_="key path"), "outlined: the critical path"))
    statuses = {agent.status for agent in shown}
    if statuses & set(CUT):
        items.append(element("li", element("span", class_="key cut"), "hatched end: cut by a budget, or unfinished"))
    if FAILED in statuses:
        items.append(element("li", element("span", class_="key failed"), "hollow with a cross: failed, or masked"))
    items.append(element("li", element("span", class_="key wait"), "thin line: waits for its sub-agents"))
    return element("ul", *items, class_="legend roles")
