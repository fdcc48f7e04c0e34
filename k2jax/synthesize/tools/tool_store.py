"""A repository of tools on disk, which is opened at once: an index finds tools by words and by domain.

The folder has ``tools.jsonl`` (a tool a line, with its domain, source and origin), ``domains.jsonl`` (of each domain
its world without tools) and ``tools_index.npz``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
import json
import mmap
from pathlib import Path
import random
from typing import Any, NamedTuple

import numpy as np

from k2jax.errors import UserError, nearest
from k2jax.files.atomic import write_atomic, write_json_lines
from k2jax.synthesize.stages import Record
from k2jax.synthesize.tools.distinct_domains import tools_of
from k2jax.synthesize.tools.evolution import collections_of, seeds
from k2jax.synthesize.tools.near_duplicates import tool_text
from k2jax.synthesize.tools.tool_objects import words_of
from k2jax.tasks.worlds.world_spec import changes_state

TOOLS, DOMAINS, INDEX = "tools.jsonl", "domains.jsonl", "tools_index.npz"
_SATURATION, _LENGTHS = 1.2, 0.75  # the usual k1 and b of BM25


class FoundTool(NamedTuple):
    """A tool that a search found.

    Attributes:
        score: how well it fits, BM25.
        entry: the line of ``tools.jsonl``.
    """

    score: float
    entry: Mapping[str, Any]


def entries_of(record: Record) -> list[dict[str, Any]]:
    """The lines of ``tools.jsonl`` of a domain or server."""
    shared = {"domain": record["name"], "category": record["category"]}
    origins = {} if "server" in record else record.get("origins") or seeds(record["world"])
    return [
        {
            "id": f"{record['name']}/{tool['name']}",
            **shared,
            "source": "mcp" if "server" in record else "evolved",
            "origin": origins.get(tool["name"], ["server", 0, ""]),
            "like": record["like"].get(tool["name"], ""),
            "tool": tool,
        }
        for tool in tools_of(record)
    ]


def write_repository(folder: Path, records: Iterable[Record]) -> list[dict[str, Any]]:
    """Writes a repository.

    Args:
        folder: of the files.
        records: domains and servers with ``like``, see ``distinct_domains``.

    Returns:
        The lines of ``tools.jsonl``.
    """
    records = list(records)
    entries = [entry for record in records for entry in entries_of(record)]
    lines = [json.dumps(entry, ensure_ascii=False).encode() + b"\n" for entry in entries]
    keys = ("name", "category", "setting", "about")
    domains = [
        {**{key: record[key] for key in keys}, "world": {**record["world"], "tools": []}}
        for record in records
        if "server" not in record
    ]
    write_json_lines(folder / DOMAINS, domains)
    write_atomic(folder / TOOLS, b"".join(lines))
    names = sorted({entry["domain"] for entry in entries})
    codes = {name: code for code, name in enumerate(names)}
    with open(folder / f"{INDEX}.new", "wb") as file:
        np.savez(
            file,
            ends=np.cumsum([len(line) for line in lines], dtype=np.int64),
            names=np.array("\n".join(names)),
            domains=np.array([codes[entry["domain"]] for entry in entries], np.int32),
            is_distinct=np.array([not entry["like"] for entry in entries]),
            **_postings([words_of(tool_text(entry["tool"])) for entry in entries]),
        )
    (folder / f"{INDEX}.new").replace(folder / INDEX)
    return entries


def _postings(texts: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """Of every word the tools that have it, with their weights."""
    counts = Counter(word for words in texts for word in words)
    vocabulary = {word: code for code, word in enumerate(sorted(counts))}
    codes = np.array([vocabulary[word] for words in texts for word in words], np.int32)
    lengths = np.array([len(words) for words in texts], np.float32)
    places = np.repeat(np.arange(len(texts), dtype=np.int32), lengths.astype(np.int64))
    order = np.argsort(codes, kind="stable")
    norm = 1 + _SATURATION * (1 - _LENGTHS + _LENGTHS * lengths / max(float(lengths.mean()), 1.0))
    many = np.array([counts[word] for word in vocabulary], np.float32)
    rarity = np.log1p((len(texts) - many + 0.5) / (many + 0.5))
    weights = rarity[codes] * (1 + _SATURATION) / norm[places]
    ends = np.cumsum(many, dtype=np.int64)
    return {
        "words": np.array("\n".join(vocabulary)),
        "word_ends": ends,
        "places": places[order],
        "weights": weights[order],
    }


class ToolRepository:
    """A stored repository of tools.

    Example:
        >>> tools = ToolRepository("runs/tools")
        >>> [found.entry["id"] for found in tools.search("freeze a gift card")]

    Args:
        folder: of its files.

    Attributes:
        domains: names of domains and servers.

    Raises:
        UserError: the folder has no repository, or an index of another one.
    """

    def __init__(self, folder: Path | str):
        self._folder = Path(folder).expanduser()
        if not (self._folder / INDEX).is_file() or not (self._folder / TOOLS).is_file():
            raise UserError(f"{folder} has no repository of tools; make one: python -m k2jax.synthesize "
                            "--config=experiments/synthesis/tools.py")  # fmt: skip
        with np.load(self._folder / INDEX, allow_pickle=False) as index:
            self._index = {name: index[name] for name in index.files}
        self._ends = self._index["ends"]
        size = (self._folder / TOOLS).stat().st_size
        if not len(self._ends) or size != self._ends[-1]:
            raise UserError(
                f"{self._folder / INDEX} is not of the {TOOLS} beside it; run the command that makes it again"
            )
        with open(self._folder / TOOLS, "rb") as file:
            self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.domains = str(self._index["names"]).split("\n")
        self._codes = {name: code for code, name in enumerate(self.domains)}
        self._words = {word: code for code, word in enumerate(str(self._index["words"]).split("\n"))}

    def __len__(self) -> int:
        return len(self._ends)

    def entry(self, place: int) -> dict[str, Any]:
        """A line of ``tools.jsonl``: ``{"id", "domain", "category", "source", "origin", "like", "tool"}``."""
        return json.loads(self._lines[self._ends[place - 1] if place else 0 : self._ends[place]])

    def search(self, text: str, count: int = 10) -> list[FoundTool]:
        """The tools whose words fit a text best, without near-duplicates of others."""
        scores = np.zeros(len(self), np.float32)
        ends, places, weights = (self._index[name] for name in ("word_ends", "places", "weights"))
        for word in words_of(text):
            if (code := self._words.get(word)) is not None:
                part = slice(ends[code - 1] if code else 0, ends[code])
                scores[places[part]] += weights[part]
        scores[~self._index["is_distinct"]] = 0
        best = np.argsort(-scores, kind="stable")[:count]
        return [FoundTool(float(scores[place]), self.entry(int(place))) for place in best if scores[place] > 0]

    def tools_of(self, domain: str) -> list[dict[str, Any]]:
        """The lines of a domain or server.

        Raises:
            UserError: there is none of that name.
        """
        if domain not in self._codes:
            raise UserError(f"the repository has no domain {domain!r}{nearest(domain, self.domains)}")
        return [self.entry(int(place)) for place in np.flatnonzero(self._index["domains"] == self._codes[domain])]

    def sample(self, domain: str, count: int, rng: random.Random) -> list[dict[str, Any]]:
        """A set of a domain's tools, in which there is a way to look up what any of them changes.

        Args:
            domain: its name.
            count: tools that are drawn; those that look up come on top.
            rng: of the draw.

        Raises:
            UserError: there is no such domain.
        """
        entries = self.tools_of(domain)
        drawn = rng.sample(range(len(entries)), min(count, len(entries)))
        chosen = set(drawn)
        tools = [entry["tool"] for entry in entries]
        looks = [place for place, tool in enumerate(tools) if "schema" not in tool and not changes_state(tool)]
        for place in drawn:
            if "schema" in tools[place] or not changes_state(tools[place]):
                continue
            for name in collections_of(tools[place]):
                known = [each for each in looks if name in collections_of(tools[each])]
                if known and not chosen & set(known):
                    chosen.add(known[0])
        return [entries[place] for place in sorted(chosen)]

    def worlds(self, rng: random.Random | None = None) -> Iterator[dict[str, Any]]:
        """The domains that can be simulated, as records of the stage ``worlds`` with all of their tools.

        Args:
            rng: of their order; None leaves it.
        """
        lines = (self._folder / DOMAINS).read_text(encoding="utf-8").splitlines()
        if rng is not None:
            rng.shuffle(lines)
        for line in lines:
            record = json.loads(line)
            tools = [entry["tool"] for entry in self.tools_of(record["name"])]
            yield {**record, "world": {**record["world"], "tools": tools}}


def coverage_report(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many tools there are by source, origin, category and domain, and how many of them are distinct."""
    by = {key: Counter(str(entry[key]) for entry in entries) for key in ("source", "category", "domain")}
    return {
        "tools": len(entries),
        "distinct": sum(not entry["like"] for entry in entries),
        "source": dict(by["source"]),
        "origin": dict(Counter(f"{entry['origin'][0]} {entry['origin'][1]}" for entry in entries)),
        "category": dict(by["category"]),
        "domain": dict(sorted(by["domain"].items(), key=lambda item: (item[1], item[0]))),
    }
