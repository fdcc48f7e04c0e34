"""Questions about the search world: tables to fill from many documents, chains of documents to follow, and more.

Beside wide and deep questions there are the kinds of large tasks of Kimi K2.5, section 3: many documents to
download, and long documents to read.
"""

from __future__ import annotations

import random
import re
from typing import Any

from k2jax.agents.split import Split
from k2jax.agents.task import Budget, Task
from k2jax.errors import UserError
from k2jax.tasks.answer_line import ANSWER_FORMAT
from k2jax.tasks.generated import GeneratedTasks, check_kinds, user
from k2jax.tasks.search_world.world import CAME, LINKS, Entity, SearchWorld, chronicle_title, receipt, search_world

WORLD = "world"
"""Key of a task's metadata: ``{"documents", "seed", "results", "page"}`` of the world that its tools search, and for
some kinds ``chronicles`` and ``download``."""
_COLUMNS = {
    "person": ("birthplace", "teacher", "profession", "born"),
    "place": ("founder", "twin", "population", "founded"),
    "work": ("creator", "home", "form", "year"),
}
_OF = {
    "founder": "the founder of",
    "twin": "the twin town of",
    "creator": "the creator of",
    "home": "the place that keeps",
    "birthplace": "the birthplace of",
    "teacher": "the teacher of",
}
_LAST = {
    "population": "What is the population of {}?",
    "founded": "In which year was {} founded?",
    "year": "In which year was {} finished?",
    "born": "In which year was {} born?",
    "form": "Which form has {}?",
    "profession": "Which profession had {}?",
}
_KINDS = ("wide", "deep", "download", "long")


class SearchTasks(GeneratedTasks):
    """Questions of some kinds; the domain is ``search/`` and the kind. Each names the world that its tools search."""

    def __init__(
        self,
        kinds: tuple[str, ...] = ("wide", "deep"),
        *,
        documents: int = 200,
        rows: int = 4,
        columns: int = 2,
        hops: int = 3,
        entries: int = 60,
        results: int = 5,
        page: int = 1000,
        count: int = 100,
        seed: int = 0,
        split: Split = "train",
    ):
        """A set of questions about one world.

        Args:
            kinds: ``wide`` (fill a table), ``deep`` (follow links to a fact), ``download`` (download many documents and
                list their receipts) and ``long`` (count in a document of many pages), in turn.
            documents: of the world.
            rows: of a table, or documents to download.
            columns: attributes of each row.
            hops: links of a chain.
            entries: of a long document.
            results: documents that a search shows.
            page: characters that ``browse`` shows at a time.
            count: number of tasks.
            seed: of the world and the questions.
            split: ``train`` or ``test``.

        Raises:
            UserError: a kind is unknown, or a number out of range.
        """
        check_kinds("search_world", kinds, _KINDS)
        if documents < 20 or not 1 <= rows <= documents // 10 or not 1 <= columns <= 4:
            raise UserError("search_world: documents must be 20 or more, rows at most a tenth of it, columns 1 to 4")
        if not 1 <= hops <= 8 or results < 1 or page < 1 or entries < 1:
            raise UserError("search_world: hops must be from 1 to 8, results, page and entries positive")
        self._kinds, self._seed, self._name = kinds, seed, f"{split}/seed{seed}"
        self._rows, self._columns, self._hops, self._entries = rows, columns, hops, entries
        self._world = {"documents": documents, "seed": seed, "results": results, "page": page}
        super().__init__("search_world", count, split, stream=f"search tasks {seed} {split}")

    def draw(self, number: int, rng: random.Random) -> Task:
        """A question of the next kind."""
        questions = {"wide": self._wide, "deep": self._deep, "download": self._download, "long": self._long}
        kind = self._kinds[number % len(self._kinds)]
        of_world = self._world | _MORE.get(kind, {}) | ({"chronicles": self._entries} if kind == "long" else {})
        world = search_world(of_world["documents"], self._seed, of_world.get("chronicles", 0))
        prompt, metadata = questions[kind](world, rng)
        return Task(
            id=f"{kind}/{self._name}/{number}",
            domain=f"search/{kind}",
            instruction=(user(prompt),),
            verifier="item_f1" if "table" in metadata else "answer_line",
            environment="tools",
            tools=("search_world",),
            budget=Budget(steps=8 + 4 * self._lookups(kind)),
            metadata={WORLD: of_world, **metadata},
        )

    def _lookups(self, kind: str) -> int:
        """About so many documents, or pages of one, that an answer takes."""
        return {"deep": self._hops, "long": 100 * self._entries // self._world["page"]}.get(kind, self._rows)

    def _wide(self, world: SearchWorld, rng: random.Random) -> tuple[str, dict[str, Any]]:
        kind = rng.choice(sorted(_COLUMNS))
        columns = rng.sample(_COLUMNS[kind], self._columns)
        entities = rng.sample([e for e in world.entities.values() if e.kind == kind], self._rows)
        table = [[entity.name, *(entity.facts[column] for column in columns)] for entity in entities]
        names = ", ".join(entity.name for entity in entities)
        prompt = (
            f"Fill a table with the columns name | {' | '.join(columns)} for these: {names}. Answer with one row on "
            "every line, its cells separated by |, and nothing else."
        )
        return prompt, {"table": table, "columns": columns}

    def _deep(self, world: SearchWorld, rng: random.Random) -> tuple[str, dict[str, Any]]:
        start = entity = rng.choice(list(world.entities.values()))
        links = []
        for _ in range(self._hops):
            links.append(rng.choice([key for key in entity.facts if key in LINKS]))
            entity = _linked(world, entity, links[-1])
        fact = rng.choice([key for key in entity.facts if key in _LAST])
        described = start.name
        for link in links:
            described = f"{_OF[link]} {described}"
        prompt = f"{_LAST[fact].format(described)} {ANSWER_FORMAT}"
        value = entity.facts[fact]
        answer = int(value) if value.isdigit() else value
        return prompt, {"answer": answer, "start": start.name, "links": links, "fact": fact}

    def _download(self, world: SearchWorld, rng: random.Random) -> tuple[str, dict[str, Any]]:
        names = rng.sample(list(world.entities), self._rows)
        pages = [world.corpus.page(world.address_of(name)) for name in names]
        table = [[name, receipt(page)] for name, page in zip(names, pages, strict=True) if page is not None]
        prompt = (
            f"Download the documents about these: {', '.join(names)}. Answer with one row on every line, name | "
            "receipt, and nothing else."
        )
        return prompt, {"table": table, "columns": ["receipt"], "downloads": True}

    def _long(self, world: SearchWorld, rng: random.Random) -> tuple[str, dict[str, Any]]:
        place = rng.choice([entity.name for entity in world.entities.values() if entity.kind == "place"])
        people = [entity for entity in world.entities.values() if entity.kind == "person"]
        profession = rng.choice(people).facts["profession"]
        year = rng.randrange(1600, 1900, 50)
        title = chronicle_title(place)
        page = world.corpus.page(world.address_of(title))
        assert page is not None
        prompt = (
            f"How many entries of the {title} say that a person with the profession {profession} came to {place} in "
            f"the year {year} or later? {ANSWER_FORMAT}"
        )
        counted = {"title": title, "profession": profession, "year": year}
        return prompt, {"answer": arrivals(page.text, profession, year), "counted": counted}


_MORE: dict[str, dict[str, Any]] = {"download": {"download": True}}
"""What a kind's world has beside its documents."""


def arrivals(text: str, profession: str, year: int) -> int:
    """How many people of a profession came in a year or later, as a chronicle says."""
    pattern = CAME.format(year=r"(\d+)", profession=profession, name=r"\w+ \w+", place=r"[\w ]+").rstrip(".")
    return sum(int(found) >= year for found in re.findall(pattern, text))


def _linked(world: SearchWorld, entity: Entity, link: str) -> Entity:
    return world.entities[entity.facts[link]]
