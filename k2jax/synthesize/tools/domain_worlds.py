"""Seeds of a repository of tools: domains of categories, and of each a world with its tools and what they do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
import json
import math
from typing import Any

import numpy as np

from k2jax.synthesize.asking import Asker
from k2jax.synthesize.stages import Made, Record
from k2jax.tasks.worlds import semantics
from k2jax.tasks.worlds.grammar import SETTINGS, generated_world
from k2jax.tasks.worlds.world_spec import read_world

CATEGORIES = tuple(SETTINGS)
TOOLS_OF_A_WORLD = 9
"""About how many tools a world has."""
MOST_DOMAINS = 10
"""That a writer is asked for in one question."""
Work = Callable[[Record, Asker], Awaitable[Made]]
DOMAIN = {"type": "object", "properties": {"setting": {"type": "string", "minLength": 1, "maxLength": 60},
           "about": {"type": "string", "maxLength": 300}}, "required": ["setting", "about"]}  # fmt: skip
"""JSON schema of a domain."""
_WORLD = {"type": "object", "required": ["world"], "properties": {"world": {"type": "object"}}}
LANGUAGE = (semantics.__doc__ or "").partition("An expression")[2]
"""What a model is told of the language of semantics."""


def domain_questions(count: int) -> list[Record]:
    """The first records of a pipeline: questions for so many domains, evenly over the categories."""
    rounds = math.ceil(count / (MOST_DOMAINS * len(CATEGORIES)))
    questions = [(category, number) for number in range(rounds) for category in CATEGORIES]
    counts = [len(part) for part in np.array_split(np.arange(count), len(questions))]
    return [
        {"category": category, "round": number, "count": count}
        for (category, number), count in zip(questions, counts, strict=True)
        if count
    ]


def domains() -> Work:
    """The stage that asks for domains of a category."""

    async def work(record: Record, asker: Asker) -> Made:
        if "server" in record:
            return Made([record])
        count = record["count"]
        text = (
            f"Name {count} different places or services of the category '{record['category']}' whose desk helps "
            "customers with tools on records, such as accounts, requests or bookings. They are unlike those that you "
            f"would name first: this is round {record['round'] + 1}. Answer with a JSON object "
            '{"domains": [{"setting": two or three words, "about": what its customers want}]}.'
        )
        schema = {
            "type": "object",
            "required": ["domains"],
            "properties": {"domains": {"type": "array", "items": DOMAIN, "minItems": 1, "maxItems": count}},
        }
        asked = [{"role": "user", "content": text}]
        answer = await asker.ask_object("writer", "domains", asked, schema, inputs=record)
        return Made([{"category": record["category"], "round": record["round"], **one} for one in answer["domains"]])

    return work


def worlds() -> Work:
    """The stage that asks for the world of a domain, with tools whose semantics are data."""
    example = json.dumps(generated_world("culture", "city library", 0).spec.to_json())

    async def work(record: Record, asker: Asker) -> Made:
        if "server" in record:
            return Made([record])
        text = (
            f"Write the world of the service desk of a {record['setting']} ({record['category']}): {record['about']}\n"
            "It is a JSON object of collections of records, invariants that no call may break, and tools. What tools "
            f"need, change and answer is written in a small language. An expression{LANGUAGE}\nAn example of another "
            f'world:\n{example}\nAnswer with a JSON object {{"world": ...}} that has the same keys.'
        )
        asked = [{"role": "user", "content": text}]

        def check(value: dict[str, Any]) -> None:
            read_world(value["world"])

        answer = await asker.ask_object("writer", "world", asked, _WORLD, inputs=record, check=check)
        return Made([{**record, "name": answer["world"]["name"], "world": answer["world"]}])

    return work
