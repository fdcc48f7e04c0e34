"""Evolution of tools in rounds: breadth adds domains beside others and kinds of tools to a domain, depth refines tools.

What a domain has is counted (``coverage_of``); every round asks for tools of what is covered least, until the domain
has its share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
import json
import math
from typing import Any

from k2jax.errors import UserError
from k2jax.synthesize.asking import Asker
from k2jax.synthesize.stages import DroppedError, Made, Record
from k2jax.synthesize.tools.domain_worlds import DOMAIN, LANGUAGE, Work
from k2jax.tasks.worlds.world_spec import changes_state, read_world

WAYS = ("breadth", "depth")
MOST_ASKED = 12
"""Tools of one answer."""
_TOOLS = {
    "type": "object",
    "required": ["collections", "tools"],
    "properties": {
        "collections": {"type": "object"},
        "tools": {"type": "array", "items": {"type": "object", "required": ["name"]}, "minItems": 1},
        "of": {"type": "array", "items": {"type": "string"}},
    },
}
_ASKED = {
    "breadth": "Add {count} tools for something that its customers need and none of its tools does, with new "
    'collections where they are needed. Answer with a JSON object {{"collections": {{the new ones by name}}, "tools": '
    "[...]}}.",
    "depth": "Refine {count} of its tools: each becomes a new tool beside the old one under another name, with more "
    "parameters or conditions, or with more that it changes; fields that collections get for it are optional. Answer "
    'with a JSON object {{"collections": {{those with new fields, whole}}, "tools": [...], "of": [the name of each '
    "one's old tool]}}.",
}


def neighbours(count: int) -> Work:
    """The stage that asks for domains beside each of those that were named first; these are kept, too."""

    async def work(record: Record, asker: Asker) -> Made:
        if "server" in record:
            return Made([record])
        text = (
            f"A service desk of a {record['setting']} ({record['category']}): {record['about']}\nName {count} other "
            "places or services of the same category whose customers want something else of their desks. Answer with "
            'a JSON object {"domains": [{"setting": two or three words, "about": what its customers want}]}.'
        )
        schema = {
            "type": "object",
            "required": ["domains"],
            "properties": {"domains": {"type": "array", "items": DOMAIN, "minItems": 1, "maxItems": count}},
        }
        asked, inputs = [{"role": "user", "content": text}], {**record, "count": count}
        answer = await asker.ask_object("writer", "neighbours", asked, schema, inputs=inputs)
        return Made([record, *({**record, **one} for one in answer["domains"])])

    return work


def evolved(number: int, rounds: int, tools: int) -> Work:
    """The stage of a round, which brings a domain a part of the way to so many tools.

    Args:
        number: of the round, from 1.
        rounds: in all.
        tools: that the domain has in the end, about.
    """

    async def work(record: Record, asker: Asker) -> Made:
        if "server" in record:
            return Made([record])
        world, origins = record["world"], dict(record.get("origins") or seeds(record["world"]))
        dropped: list[tuple[str, Record]] = []
        wanted = math.ceil((tools - len(world["tools"])) / (rounds - number + 1))
        for way, count in zip(WAYS, (math.ceil(wanted / 2), wanted // 2), strict=True):
            for part in range(math.ceil(count / MOST_ASKED)):
                asks = min(MOST_ASKED, count - part * MOST_ASKED)
                try:
                    world = await _asked(asker, record, way, world, {"count": asks, "round": number}, origins)
                except DroppedError as error:  # the domain goes on with what it has
                    dropped.append((str(error), {"name": record["name"], "way": way, "round": number}))
        return Made([{**record, "world": world, "origins": origins}], dropped)

    return work


async def _asked(
    asker: Asker, record: Record, way: str, world: dict[str, Any], size: Mapping[str, int], origins: dict[str, Any]
) -> dict[str, Any]:
    """The world with what the writer adds to it, whose origins are noted."""
    coverage = coverage_of(world)
    text = (
        f"The world of the service desk of a {record['setting']} ({record['category']}), as a JSON object:\n"
        f"{json.dumps(world)}\nWhat tools need, change and answer is written in a small language. An expression"
        f"{LANGUAGE}\nTools by collection, the fewest first: {json.dumps(coverage)}; add to what has few.\n"
        f"{_ASKED[way].format(count=size['count'])}"
    )
    inputs = {**record, **size, "world": world, "coverage": coverage}
    asked = [{"role": "user", "content": text}]
    answer = await asker.ask_object(
        "writer", way, asked, _TOOLS, inputs=inputs, check=lambda value: grown(world, value, way)
    )
    parents = answer.get("of", []) if way == "depth" else []
    for place, tool in enumerate(answer["tools"]):
        origins[tool["name"]] = [way, size["round"], parents[place] if place < len(parents) else ""]
    return grown(world, answer, way)


def seeds(world: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Where the tools of a world come from that was not evolved: ``[way, round, parent]`` by name."""
    return {tool["name"]: ["seed", 0, ""] for tool in world["tools"]}


def grown(world: Mapping[str, Any], answer: Mapping[str, Any], way: str) -> dict[str, Any]:
    """A world with more tools.

    Args:
        world: as JSON.
        answer: ``{"collections", "tools", "of"}``, see ``evolved``.
        way: of ``WAYS``.

    Raises:
        UserError: it changes what exists, refines no tool, or the whole is no world.
    """
    collections = dict(world["collections"])
    for name, collection in answer["collections"].items():
        old = collections.get(name)
        if old is not None and not _extends(collection, old):
            raise UserError(f"the collection {name} exists, and may get optional fields and nothing else")
        collections[name] = collection
    known = {tool["name"] for tool in world["tools"]}
    if taken := [tool["name"] for tool in answer["tools"] if tool["name"] in known]:
        raise UserError(f"a tool {taken[0]} exists; give a new one another name")
    parents = answer.get("of", [])
    if way == "depth" and not (len(parents) == len(answer["tools"]) and set(parents) <= known):
        raise UserError("'of' must name an old tool for each refined one")
    return read_world({**world, "collections": collections, "tools": [*world["tools"], *answer["tools"]]}).to_json()


def _extends(new: Any, old: Mapping[str, Any]) -> bool:
    if not isinstance(new, Mapping) or new.get("prefix") != old["prefix"] or not isinstance(new.get("fields"), Mapping):
        return False
    added = {name: field for name, field in new["fields"].items() if name not in old["fields"]}
    is_kept = all(new["fields"].get(name) == field for name, field in old["fields"].items())
    return is_kept and all(isinstance(field, Mapping) and field.get("optional") for field in added.values())


def coverage_of(world: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Of every collection how many tools only look it up and how many change records, the fewest first."""
    counts = {name: Counter({"look up": 0, "change": 0}) for name in world["collections"]}
    for tool in world["tools"]:
        kind = "change" if changes_state(tool) else "look up"
        for name in collections_of(tool) & counts.keys():
            counts[name][kind] += 1
    return {name: dict(count) for name, count in sorted(counts.items(), key=lambda item: item[1].total())}


def collections_of(tool: Mapping[str, Any]) -> set[str]:
    """Names of the collections that a tool's effects and answer are about."""
    parts: list[Any] = [effect for effect in tool["effects"] if "when" not in effect] + [tool["returns"]]
    found: set[str] = set()
    for part in parts:
        [(kind, of)] = part.items()
        named: Sequence[Any] = of if isinstance(of, list) else ()
        if kind == "value" and isinstance(of, Mapping) and "field" in of:
            named = of["field"]
        if named and isinstance(named[0], str):
            found.add(named[0])
    return found
