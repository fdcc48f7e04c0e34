"""Questions about generated tables with exact answers: look-ups over several tables, and aggregation across them.

Every world has three tables: people, companies and cities. Each task also has its question as SQL, so that a database
can check the answer.
"""

from __future__ import annotations

from collections.abc import Callable
import random
from typing import NamedTuple

from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.tasks.answer_line import ANSWER_FORMAT
from k2jax.tasks.generated import GeneratedTasks, check_kinds, user

COLUMNS = {
    "people": ("name", "age", "city", "company"),
    "companies": ("company", "sector", "city", "founded"),
    "cities": ("city", "country", "population"),
}
Row = dict[str, str | int]

_NAMES = [
    "Ada", "Bela", "Carlo", "Dora", "Emil", "Fatima", "Goran", "Hana", "Igor", "Jana", "Kofi", "Lena", "Mateo",
    "Nadia", "Omar", "Petra", "Quentin", "Rosa", "Samir", "Tilda", "Umar", "Vera", "Wanda", "Xenia", "Yusuf", "Zora",
    "Amir", "Berta", "Chidi", "Davor", "Elif", "Farid", "Greta", "Hugo", "Ines", "Joao", "Kaja", "Luis", "Mina",
    "Nils",
]  # fmt: skip
_COMPANIES = [
    "Arvix", "Belmor", "Cantio", "Dexal", "Elvora", "Fintra", "Gorvan", "Helix", "Iridal", "Jovex", "Kelmar",
    "Lumora",
]  # fmt: skip
_SECTORS = ("energy", "shipping", "banking", "textiles")
_CITIES = ["Almeda", "Brovic", "Castor", "Dunmar", "Estrel", "Falken", "Gravo", "Hestia", "Ivrea", "Jarno"]
_COUNTRIES = ("Norland", "Sudria", "Estavia", "Vestmark")


class World(NamedTuple):
    """The rows of the three tables, each by the name of a column."""

    people: list[Row]
    companies: list[Row]
    cities: list[Row]


class Question(NamedTuple):
    """A question, its answer, and the query that a database answers with the same."""

    text: str
    answer: str | int
    sql: str


class TableTasks(GeneratedTasks):
    """Questions about tables in the prompt, one world each."""

    def __init__(
        self,
        kinds: tuple[str, ...] = ("hop2", "hop3", "count", "sum", "oldest"),
        rows: int = 12,
        count: int = 1000,
        seed: int = 0,
        split: Split = "train",
    ):
        """A set of questions.

        Args:
            kinds: look-ups over two or three tables (``hop2``, ``hop3``); aggregation over a join (the others).
            rows: people of a world; the other tables have at most a third as many.
            count: number of tasks.
            seed: of worlds and questions.
            split: ``train`` or ``test``.

        Raises:
            UserError: a kind is unknown, or a number out of range.
        """
        check_kinds("tables", kinds, list(QUESTIONS))
        if not 6 <= rows <= len(_NAMES):
            raise UserError(f"tables: rows is {rows}; it must be from 6 to {len(_NAMES)}")
        self._kinds, self._rows, self._name = kinds, rows, f"{split}/seed{seed}"
        super().__init__("tables", count, split, stream=f"{seed} {split}")

    def draw(self, number: int, rng: random.Random) -> Task:
        """A question of the next kind about a world of its own; the domain is ``tables/`` and the kind."""
        kind = self._kinds[number % len(self._kinds)]
        world = _world(rng, self._rows)
        question = QUESTIONS[kind](world, rng)
        return Task(
            id=f"{kind}/{self._name}/{number}",
            domain=f"tables/{kind}",
            instruction=(user(f"{render(world)}\n\n{question.text} {ANSWER_FORMAT}"),),
            verifier="answer_line",
            metadata={"answer": question.answer, "kind": kind, "sql": question.sql},
        )


def render(world: World) -> str:
    """The tables as text: a heading, the columns, and a row on every line, separated by bars."""
    parts = []
    for table, columns in COLUMNS.items():
        rows = [" | ".join(str(row[column]) for column in columns) for row in getattr(world, table)]
        parts.append("\n".join([f"Table {table}", " | ".join(columns), *rows]))
    return "\n\n".join(parts)


def _world(rng: random.Random, rows: int) -> World:
    """Tables in which every look-up has one result; the ages of people are distinct."""
    third = max(2, rows // 3)
    cities = [
        {"city": city, "country": rng.choice(_COUNTRIES), "population": rng.randrange(10, 900) * 1000}
        for city in rng.sample(_CITIES, min(third, len(_CITIES)))
    ]
    companies = [
        {
            "company": company,
            "sector": rng.choice(_SECTORS),
            "city": rng.choice(cities)["city"],
            "founded": rng.randrange(1880, 2020),
        }
        for company in rng.sample(_COMPANIES, min(third, len(_COMPANIES)))
    ]
    ages = rng.sample(range(18, 80), rows)
    people = [
        {"name": name, "age": age, "city": rng.choice(cities)["city"], "company": rng.choice(companies)["company"]}
        for name, age in zip(rng.sample(_NAMES, rows), ages, strict=True)
    ]
    return World(people, companies, cities)


def _hop2(world: World, rng: random.Random) -> Question:
    person = rng.choice(world.people)
    text = f"In which country does {person['name']} live?"
    sql = f"SELECT country FROM people JOIN cities USING (city) WHERE name = '{person['name']}'"
    return Question(text, _by(world.cities, "city")[person["city"]]["country"], sql)


def _hop3(world: World, rng: random.Random) -> Question:
    person = rng.choice(world.people)
    company = _by(world.companies, "company")[person["company"]]
    text = f"In which country is the company based that {person['name']} works for?"
    sql = (
        "SELECT country FROM people JOIN companies USING (company) JOIN cities ON cities.city = companies.city "
        f"WHERE name = '{person['name']}'"
    )
    return Question(text, _by(world.cities, "city")[company["city"]]["country"], sql)


def _count(world: World, rng: random.Random) -> Question:
    sector = rng.choice(_SECTORS)
    companies = _by(world.companies, "company")
    answer = sum(companies[person["company"]]["sector"] == sector for person in world.people)
    text = f"How many people work for companies in the sector {sector}?"
    return Question(
        text, answer, f"SELECT COUNT(*) FROM people JOIN companies USING (company) WHERE sector = '{sector}'"
    )


def _sum(world: World, rng: random.Random) -> Question:
    country = rng.choice(_COUNTRIES)
    cities = _by(world.cities, "city")
    answer = sum(person["age"] for person in world.people if cities[person["city"]]["country"] == country)
    text = f"What is the sum of the ages of all people who live in {country}? It is 0 if there are none."
    return Question(
        text, answer, f"SELECT COALESCE(SUM(age), 0) FROM people JOIN cities USING (city) WHERE country = '{country}'"
    )


def _oldest(world: World, rng: random.Random) -> Question:
    company = rng.choice(world.people)["company"]
    staff = [person for person in world.people if person["company"] == company]
    answer = max(staff, key=lambda person: person["age"])["city"]
    population = _by(world.cities, "city")[answer]["population"]
    text = f"What is the population of the city in which the oldest person who works for {company} lives?"
    sql = (
        f"SELECT population FROM people JOIN cities USING (city) WHERE company = '{company}' ORDER BY age DESC LIMIT 1"
    )
    return Question(text, population, sql)


def _by(rows: list[Row], column: str) -> dict[str | int, Row]:
    return {row[column]: row for row in rows}


QUESTIONS: dict[str, Callable[[World, random.Random], Question]] = {
    "hop2": _hop2,
    "hop3": _hop3,
    "count": _count,
    "sum": _sum,
    "oldest": _oldest,
}
"""Makers of questions by kind."""
