"""What the sandboxes of an episode asked of other machines, as a table."""

from __future__ import annotations

from typing import Any

from k2jax.agents.egress.egress_log import EGRESS
from k2jax.agents.viewer.markup import Html, element, joined
from k2jax.trajectory.types import Trajectory

_COLUMNS = (
    "at [s]",
    "method",
    "host",
    "port",
    "path",
    "status",
    "sent [bytes]",
    "received [bytes]",
    "seconds",
    "reason",
)
_KEYS = ("at", "method", "host", "port", "path", "status", "sent", "received", "seconds", "reason")
_MOST_ROWS = 200
_LONGEST = 200


def egress_table(trajectory: Trajectory) -> Html:
    """A row for each request, the first ones of many; empty where no sandbox might reach another machine."""
    log = trajectory.metadata.get(EGRESS)
    requests = log.get("requests") if isinstance(log, dict) else None
    if not isinstance(requests, list):
        return joined(())
    rows = [element("tr", *[element("th", name) for name in _COLUMNS])]
    for entry in requests[:_MOST_ROWS]:
        values = entry if isinstance(entry, dict) else {}
        rows.append(element("tr", *[element("td", _shown(values.get(key))) for key in _KEYS]))
    count = f"{len(requests):,} kept, {_shown(log.get('dropped'))} dropped, {len(rows) - 1:,} shown"
    heading = element("summary", element("b", "Requests to other machines"), element("span", count))
    return element("details", heading, element("table", *rows), class_="card wide")


def _shown(value: Any) -> str:
    if type(value) in (int, float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
    return value[:_LONGEST] if isinstance(value, str) else "—"
