"""Which tools of a repository are near-duplicates of others: they are marked, since a domain needs its lookups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from k2jax.synthesize.stages import Made, Record
from k2jax.synthesize.tools.near_duplicates import MOST_DOUBLED, duplicate_tools


def tools_of(record: Record) -> Sequence[Mapping[str, Any]]:
    """The tools of a domain, or of a server."""
    return record["tools"] if "server" in record else record["world"]["tools"]


def distinct_domains(near: float, encoder: str = "") -> Callable[[Sequence[Record]], Made]:
    """The stage that notes in ``like`` which tool of an earlier domain each tool is like, and drops doubled domains.

    Args:
        near: see ``duplicate_tools``.
        encoder: see ``text_vectors``.
    """

    def work(records: Sequence[Record]) -> Made:
        names = [f"{record['name']}/{tool['name']}" for record in records for tool in tools_of(record)]
        earlier = duplicate_tools([tool for record in records for tool in tools_of(record)], near, encoder)
        made, place = Made([], []), 0
        left: set[str] = set()
        for record in records:
            mine = range(place, place := place + len(tools_of(record)))
            like = {
                names[each].rpartition("/")[2]: names[earlier[each]]
                for each in mine
                if earlier[each] >= 0 and names[earlier[each]] not in left
            }
            if len(like) > MOST_DOUBLED * len(mine):
                left.update(names[each] for each in mine)
                made.dropped.append(("near-duplicate tools", record))
            else:
                made.kept.append({**record, "like": like})
        return made

    return work
