"""Parts of generated worlds: kinds of records with their tools, and what users may want of them.

A world is made of some parts under words of its own ("gift card", "points"). The tools of a part are complete: they
look up, change and refuse, and the invariants say what no call may break.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
import dataclasses
import random
import re
from typing import Any

Json = dict[str, Any]
PEOPLE = (
    "Ana Lopez", "Ben Okafor", "Chen Wei", "Dina Haddad", "Emil Novak", "Fatma Kaya", "Goran Ilic", "Hana Sato",
    "Ivo Marin", "Jun Park", "Kira Stein", "Luis Prado", "Mona Aziz", "Nils Berg", "Olga Petrov", "Priya Rao",
)  # fmt: skip


@dataclasses.dataclass(kw_only=True)
class Wish:
    """Something that a user wants of a part, and how it is done.

    Attributes:
        opening: what the user says first about it, as a sentence.
        facts: what it says when asked, see ``UserSpec``.
        calls: ``[name, arguments]`` of a reference solution, in order.
        goal: conditions on the last state.
        told: texts that the agent has to say.
        forbidden: tools that must not be carried out.
        rubric: what a judge looks for, as sentences.
    """

    opening: str
    calls: list[list[Any]]
    goal: list[Json]
    facts: list[Json] = dataclasses.field(default_factory=list)
    told: list[str] = dataclasses.field(default_factory=list)
    forbidden: list[str] = dataclasses.field(default_factory=list)
    rubric: list[str] = dataclasses.field(default_factory=list)


class WorldPart(ABC):
    """A part under the words of a world.

    Attributes:
        collections: see ``WorldSpec``.
        invariants: see ``WorldSpec``.
        tools: see ``WorldSpec``.
        rules: for the agent, as sentences.
    """

    collections: Json
    invariants: list[Json]
    tools: list[Json]
    rules: list[str]

    @abstractmethod
    def rows(self, rng: random.Random) -> Json:
        """Draws the first records of its collections."""

    @abstractmethod
    def wish(self, rng: random.Random, state: Json, used: set[str]) -> Wish | None:
        """Draws something that a user wants.

        Args:
            rng: of the draw.
            state: the first records.
            used: what other wishes of the user are about, to which this one's records are added.

        Returns:
            The wish; None where nothing is left to be wanted.
        """

    @staticmethod
    def exists(collection: str, noun: str, key: str) -> Json:
        """The requirement that an argument is the id of a record."""
        return need({"exists": [collection, arg(key)]}, f"there is no {noun} {{{key}}}")

    @classmethod
    def looked_up(cls, collection: str, noun: str, key: str) -> Json:
        """The tool that shows one record."""
        parameters, returns = {key: text(f"Id of the {noun}.")}, {"record": [collection, arg(key)]}
        known = cls.exists(collection, noun, key)
        return tool(f"get_{snake(noun)}", f"Shows one {noun}.", parameters, returns, requires=[known])

    @staticmethod
    def found(collection: str, noun: str, filters: Mapping[str, Json]) -> Json:
        """The tool that lists records by optional fields."""
        parameters = {name: {**kind, "optional": True} for name, kind in filters.items()}
        returns = {"find": [collection, {name: arg(name) for name in filters}]}
        description = f"Lists {plural(noun)}, all or by {' or '.join(filters)}."
        return tool(f"find_{collection}", description, parameters, returns)

    @staticmethod
    def next_id(state: Json, collection: str) -> str:
        """The id that the first new record of a collection gets."""
        last = max((int(key[1:]) for key in state[collection]), default=0)
        return f"{collection[0]}{last + 1}"


def snake(words: str) -> str:
    """A name of words: ``gift card`` becomes ``gift_card``."""
    return re.sub(r"\W+", "_", words.strip().lower())


def plural(noun: str) -> str:
    """The plural of an English noun."""
    if re.search(r"[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    return noun + ("es" if re.search(r"(s|x|ch|sh)$", noun) else "s")


def tool(name: str, description: str, parameters: Json, returns: Json, **semantics: Sequence[Any]) -> Json:
    """A tool of ``WorldSpec``, with ``requires`` and ``effects`` where it has some."""
    return {
        "name": name,
        "description": description,
        "parameters": parameters,
        "requires": list(semantics.get("requires", ())),
        "effects": list(semantics.get("effects", ())),
        "returns": returns,
    }


def text(description: str, **more: Any) -> Json:
    """A parameter or field that is a text."""
    return {"type": "string", "description": description, **more}


def whole(description: str, **more: Any) -> Json:
    """A parameter or field that is a whole number."""
    return {"type": "integer", "description": description, **more}


def need(condition: Json, error: str) -> Json:
    """A requirement of a tool."""
    return {"condition": condition, "error": error}


def arg(name: str) -> Json:
    """An argument."""
    return {"arg": name}


def field(collection: str, key: Any, name: str) -> Json:
    """A field of a record."""
    return {"field": [collection, key, name]}
