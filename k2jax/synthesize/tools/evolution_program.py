"""The program that plays the writer of a repository of tools: it draws from seeded grammars and needs no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import random
from typing import Any

from k2jax.errors import UserError
from k2jax.synthesize.questions import ModelQuestion
from k2jax.synthesize.stages import seed_of
from k2jax.synthesize.tools.domain_worlds import MOST_DOMAINS
from k2jax.synthesize.tools.evolution import collections_of
from k2jax.synthesize.tools.record_kinds import RecordKind
from k2jax.synthesize.tools.refinements import refined
from k2jax.tasks.worlds.grammar import SETTINGS, generated_world
from k2jax.tasks.worlds.world_spec import MOST_COLLECTIONS

_TRIES = 12
_BESIDE = 500
"""Numbers of domains that are named beside others, so that they are none of the first ones."""


def written_repository(question: ModelQuestion, seed: int) -> Any:
    """What the writer answers, as JSON.

    Args:
        question: whose purpose is ``domains``, ``neighbours``, ``world``, ``breadth`` or ``depth``.
        seed: of the run.

    Raises:
        UserError: it has another purpose.
    """
    answers: dict[str, Callable[[Mapping[str, Any], int], Any]] = {
        "domains": _domains, "neighbours": _neighbours, "world": _world, "breadth": _breadth, "depth": _depth,
    }  # fmt: skip
    if question.purpose not in answers:
        raise UserError(f"the program that plays the writer knows no {question.purpose}")
    return answers[question.purpose](question.inputs, seed)


def number_of(record: Mapping[str, Any], seed: int) -> int:
    """The number of a domain's world in its setting, of a domain that the program named."""
    return int(record["about"].removeprefix("number ")) + 1000 * seed


def _domains(inputs: Mapping[str, Any], seed: int) -> Any:
    names = SETTINGS[inputs["category"]]
    first = inputs["round"] * MOST_DOMAINS
    places = [first + number for number in range(inputs["count"])]
    return {"domains": [{"setting": names[p % len(names)], "about": f"number {p // len(names)}"} for p in places]}


def _neighbours(inputs: Mapping[str, Any], seed: int) -> Any:
    names, count = SETTINGS[inputs["category"]], inputs["count"]
    place, number = names.index(inputs["setting"]), int(inputs["about"].removeprefix("number "))
    return {
        "domains": [
            {"setting": names[(place + 1 + each) % len(names)], "about": f"number {_BESIDE + number * count + each}"}
            for each in range(count)
        ]
    }


def _world(inputs: Mapping[str, Any], seed: int) -> Any:
    number = number_of(inputs, seed)
    return {"world": generated_world(inputs["category"], inputs["setting"], number).spec.to_json()}


def _drawn(inputs: Mapping[str, Any], seed: int) -> random.Random:
    return random.Random(seed_of(seed, inputs["world"]["name"], inputs["round"], len(inputs["world"]["tools"])))


def _breadth(inputs: Mapping[str, Any], seed: int) -> Any:
    """A kind of records that the domain has not, with some of its tools."""
    rng, world = _drawn(inputs, seed), inputs["world"]
    if len(world["collections"]) < MOST_COLLECTIONS:
        for _ in range(_TRIES):
            kind = RecordKind(inputs["category"], rng)
            if kind.name not in world["collections"]:
                first, *others = kind.tools
                chosen = rng.sample(others, min(inputs["count"] - 1, len(others)))
                return {"collections": {kind.name: kind.collection}, "tools": [first, *chosen]}
    return _depth(inputs, seed)


def _depth(inputs: Mapping[str, Any], seed: int) -> Any:
    """Refinements of tools, those of what is covered least first."""
    rng, world = _drawn(inputs, seed), inputs["world"]
    world = {**world, "collections": dict(world["collections"])}
    names = {tool["name"] for tool in world["tools"]}
    rank = {name: place for place, name in enumerate(inputs["coverage"])}
    tools = sorted(rng.sample(world["tools"], len(world["tools"])), key=lambda tool: _rank(tool, rank))
    made: list[tuple[str, Any]] = []
    grown: dict[str, Any] = {}
    for tool in tools * _TRIES:
        if len(made) == inputs["count"]:
            break
        drawn = refined(world, tool, rng)
        if drawn is not None and drawn[0]["name"] not in names:
            names.add(drawn[0]["name"])
            grown |= drawn[1]
            world["collections"] |= drawn[1]
            made.append((tool["name"], drawn[0]))
    return {"collections": grown, "tools": [tool for _, tool in made], "of": [of for of, _ in made]}


def _rank(tool: Mapping[str, Any], rank: Mapping[str, int]) -> int:
    return min((rank.get(name, 0) for name in collections_of(tool)), default=len(rank))
