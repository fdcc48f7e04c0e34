"""A world of linked documents about people, places and works, and questions that take search and browsing to answer.

Every world is a function of its seed. The answers to wide and deep questions are known exactly, so that policies can be
scored without a judge (the tasks of Kimi K2.5, appendix E.8, in small).
"""

from __future__ import annotations

import functools
import random
from typing import NamedTuple
import zlib

from k2jax.agents.toolsets.search import Corpus, Page

_ONSETS = ("b", "br", "d", "dr", "f", "g", "gr", "h", "k", "kl", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v")
_VOWELS = ("a", "e", "i", "o", "u", "ia", "eo")
_ENDS = ("", "n", "r", "l", "s", "th", "nd")
_FIELDS = ("painter", "composer", "botanist", "architect", "novelist", "astronomer")
_KINDS = ("opera", "treatise", "novel", "garden", "tower", "symphony")
_SHARE_OF_PLACES, _SHARE_OF_WORKS = 5, 3  # one of so many documents is about a place, or a work


class Entity(NamedTuple):
    """What a document is about.

    Attributes:
        name: unique in its world.
        kind: ``person``, ``place`` or ``work``.
        facts: by attribute; the value is a text, and the name of another entity where it is a link.
    """

    name: str
    kind: str
    facts: dict[str, str]


class SearchWorld(NamedTuple):
    """Entities, and their documents.

    Attributes:
        entities: by name.
        corpus: one document of each, in the same order.
    """

    entities: dict[str, Entity]
    corpus: Corpus

    def address_of(self, name: str) -> str:
        """The address of an entity's document."""
        return _address(name)


@functools.lru_cache(maxsize=4)
def search_world(documents: int, seed: int, chronicles: int = 0) -> SearchWorld:
    """The world of a seed.

    Args:
        documents: about entities, at least 20.
        seed: of everything.
        chronicles: entries of the chronicle that each place has beside them; 0 is no chronicles.
    """
    rng = random.Random(f"search world {documents} {seed}")
    names = _names(rng, documents)
    places = names[: documents // _SHARE_OF_PLACES]
    works = names[len(places) : len(places) + documents // _SHARE_OF_WORKS]
    people = names[len(places) + len(works) :]
    entities = [Entity(name, "place", _place(rng, name, places, people)) for name in places]
    entities += [Entity(name, "work", _work(rng, people, places)) for name in works]
    entities += [Entity(name, "person", _person(rng, name, people, places)) for name in people]
    rng.shuffle(entities)
    pages = [Page(_address(entity.name), entity.name, _document(entity, rng, people, places)) for entity in entities]
    known = {entity.name: entity for entity in entities}
    pages += [chronicle(known, place, chronicles, seed) for place in places if chronicles]
    return SearchWorld(known, Corpus(pages))


def _address(name: str) -> str:
    return name.lower().replace(" ", "-")


def _names(rng: random.Random, count: int) -> list[str]:
    """Distinct names of two words."""
    names: dict[str, None] = {}
    while len(names) < count:
        words = ("".join(rng.choice(part) for part in (_ONSETS, _VOWELS, _ONSETS, _VOWELS, _ENDS)) for _ in range(2))
        names[" ".join(word.capitalize() for word in words)] = None
    return list(names)


def _other(rng: random.Random, names: list[str], name: str) -> str:
    return rng.choice([other for other in names if other != name])


def _place(rng: random.Random, name: str, places: list[str], people: list[str]) -> dict[str, str]:
    return {
        "founder": rng.choice(people),
        "twin": _other(rng, places, name),
        "population": str(rng.randrange(1000, 900_000)),
        "founded": str(rng.randrange(900, 1900)),
    }


def _work(rng: random.Random, people: list[str], places: list[str]) -> dict[str, str]:
    return {
        "creator": rng.choice(people),
        "home": rng.choice(places),
        "form": rng.choice(_KINDS),
        "year": str(rng.randrange(1600, 2000)),
    }


def _person(rng: random.Random, name: str, people: list[str], places: list[str]) -> dict[str, str]:
    return {
        "birthplace": rng.choice(places),
        "teacher": _other(rng, people, name),
        "profession": rng.choice(_FIELDS),
        "born": str(rng.randrange(1600, 1980)),
    }


SENTENCES = {
    "founder": "{name} was founded by {value}.",
    "twin": "The twin town of {name} is {value}.",
    "population": "{name} has {value} inhabitants.",
    "founded": "{name} was founded in the year {value}.",
    "creator": "The creator of {name} is {value}.",
    "home": "{name} is kept in {value}.",
    "form": "{name} is a {value}.",
    "year": "{name} was finished in {value}.",
    "birthplace": "The birthplace of {name} is {value}.",
    "teacher": "The teacher of {name} was {value}.",
    "profession": "{name} was a {value} by profession.",
    "born": "{name} was born in {value}.",
}
"""How documents state each attribute."""
LINKS = ("founder", "twin", "creator", "home", "birthplace", "teacher")
"""Attributes whose values are names of other entities."""
_RUMOURS = {
    "founder": "An old guide wrongly names {value} as the founder.",
    "creator": "For a time it was wrongly ascribed to {value}.",
    "teacher": "That {value} was the teacher is a legend.",
    "birthplace": "The claim that the birthplace is {value} has been refuted.",
}


def _document(entity: Entity, rng: random.Random, people: list[str], places: list[str]) -> str:
    """The facts in a random order, and a decoy: a statement about another entity that says that it is false."""
    lines = [SENTENCES[key].format(name=entity.name, value=value) for key, value in entity.facts.items()]
    rng.shuffle(lines)
    attribute = rng.choice([key for key in entity.facts if key in _RUMOURS])
    true = {entity.name, *entity.facts.values()}
    others = [name for name in (places if attribute == "birthplace" else people) if name not in true]
    lines.insert(rng.randrange(len(lines) + 1), _RUMOURS[attribute].format(value=rng.choice(others)))
    return " ".join(lines)


def chronicle_title(place: str) -> str:
    """The title of a place's chronicle."""
    return f"Chronicle of {place}"


CAME = "In the year {year} the {profession} {name} came to {place}."
"""An entry of a chronicle."""
_DENIED = "It is not true that the {profession} {name} came to {place} in the year {year}."


def chronicle(entities: dict[str, Entity], place: str, entries: int, seed: int) -> Page:
    """A long document about who came to a place, in order; a fifth of its entries deny that somebody did."""
    rng = random.Random(f"chronicle of {place} {entries} {seed}")
    people = [entity for entity in entities.values() if entity.kind == "person"]
    lines = []
    for year in sorted(rng.randrange(1600, 2000) for _ in range(entries)):
        person = rng.choice(people)
        form = CAME if rng.random() > 0.2 else _DENIED
        lines.append(form.format(year=year, profession=person.facts["profession"], name=person.name, place=place))
    title = chronicle_title(place)
    return Page(_address(title), title, " ".join(lines))


def receipt(page: Page) -> str:
    """What whoever downloads a document is told, and nobody else: a checksum."""
    return f"{zlib.crc32(f'{page.address} {page.text}'.encode()):08x}"
