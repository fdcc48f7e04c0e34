"""A stored repository of 20,000 tools: opening it, searching it and drawing a domain's tools, against its lines alone.

The baselines read ``tools.jsonl``: all lines parsed to open it, all texts looked at for a search, all tools for a
domain's. The tools are those of kinds of records that the program for evolution draws, 48 to a domain.
"""

from __future__ import annotations

import json
from pathlib import Path
import random
import tempfile
from typing import Any

from k2jax.bench.timing import Row, time_rows
from k2jax.synthesize.tools.near_duplicates import tool_text
from k2jax.synthesize.tools.record_kinds import RecordKind
from k2jax.synthesize.tools.tool_objects import words_of
from k2jax.synthesize.tools.tool_store import TOOLS, ToolRepository, write_repository
from k2jax.tasks.worlds.grammar import SETTINGS

COUNT, OF_A_DOMAIN = 20_000, 48
_QUERY = "raise the price of a wooden bicycle"


def measure(rounds: int = 10) -> list[Row]:
    """Rows of milliseconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_repository(folder, [_domain(number) for number in range(COUNT // OF_A_DOMAIN + 1)])
        tools, lines = ToolRepository(folder), (folder / TOOLS).read_bytes().splitlines()
        entries = [json.loads(line) for line in lines]
        texts = [set(words_of(tool_text(entry["tool"]))) for entry in entries]
        asked, domain = set(words_of(_QUERY)), tools.domains[200]
        size = f"{len(tools):,} tools"
        return [
            *time_rows(
                f"open {size}",
                {
                    "ours": lambda: len(ToolRepository(folder)),
                    "parsing every line": lambda: len(
                        [json.loads(line) for line in (folder / TOOLS).read_bytes().splitlines()]
                    ),
                },
                rounds,
            ),
            *time_rows(
                f"search {size}",
                {
                    "ours": lambda: tools.search(_QUERY)[0].score,
                    "counting words of every text": lambda: max(len(asked & words) for words in texts),
                },
                rounds,
            ),
            *time_rows(
                f"draw 12 of a domain of {size}",
                {
                    "ours": lambda: len(tools.sample(domain, 12, random.Random(0))),
                    "looking at every line": lambda: sum(json.loads(line)["domain"] == domain for line in lines),
                },
                rounds,
            ),
        ]  # fmt: skip


def _domain(number: int) -> dict[str, Any]:
    rng, tools = random.Random(number), []
    category = list(SETTINGS)[number % len(SETTINGS)]
    while len(tools) < OF_A_DOMAIN:
        tools += RecordKind(category, rng).tools
    world = {"tools": tools[:OF_A_DOMAIN]}
    return {"name": f"d{number}", "category": category, "setting": "", "about": "", "world": world, "like": {}}
