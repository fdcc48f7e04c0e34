"""Near-duplicates of tools and agents: texts that are close, and forms that are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import itertools
import json
import re
from typing import Any
import zlib

import numpy as np

from k2jax.synthesize.sentence_vectors import SentenceEncoder, encoder_folder
from k2jax.synthesize.stages import Made, Record
from k2jax.synthesize.tools.tool_forms import field_roles, form_of, schema_kinds
from k2jax.synthesize.tools.tool_objects import ToolWords, WordMeanings, without_common

WIDTH = 512
"""Dimensions of a text's vector."""
MOST_DOUBLED = 0.5
"""Of a world's tools, from which on it is a duplicate."""
_BLOCK = 2048
_CANDIDATES = 8
"""Earlier tools that each one is compared with."""
_LIKELY = 0.5
"""Cosine similarity of what two tools are about, below which they are not compared."""


def text_vectors(texts: Sequence[str], encoder: str = "") -> np.ndarray:
    """Unit vectors of texts, float32 ``[texts, dimensions]``.

    Args:
        texts: to compare.
        encoder: see ``encoder_folder``; empty is ``hashed_vectors``, which sees words and not what they mean.

    Raises:
        UserError: the encoder cannot be used.
    """
    return SentenceEncoder(encoder_folder(encoder)).vectors(texts) if encoder else hashed_vectors(texts)


def hashed_vectors(texts: Sequence[str]) -> np.ndarray:
    """Unit vectors of texts: hashed words and their pairs, weighted by how rare they are among the texts.

    Returns:
        float32 ``[texts, WIDTH]``.
    """
    counts = np.zeros((len(texts), WIDTH), np.float32)
    for row, text in zip(counts, texts, strict=True):
        words = re.findall(r"[a-z0-9]+", text.lower())
        for gram in (*words, *map(" ".join, itertools.pairwise(words))):
            digest = zlib.crc32(gram.encode())
            row[digest % WIDTH] += 1 if digest & 1 << 31 else -1
    present = (counts != 0).sum(0)
    counts *= np.log((1 + len(texts)) / (1 + present)) + 1
    norms = np.linalg.norm(counts, axis=1, keepdims=True)
    return counts / np.maximum(norms, 1e-9)


def nearest_earlier(vectors: np.ndarray, near: float, forms: Sequence[str]) -> list[int]:
    """Of every text the nearest earlier one of the same form where the cosine is at least ``near``; -1 for none.

    Args:
        vectors: of the texts, float32 ``[texts, dimensions]``.
        near: least cosine similarity of duplicates.
        forms: of the texts; those of different forms are no duplicates, whatever they say.
    """
    found = [-1] * len(vectors)
    for places in _grouped(forms).values():
        of = vectors[places]
        for begin in range(0, len(places), _BLOCK):
            block = of[begin : begin + _BLOCK]
            for place, row in enumerate(block @ of[: begin + len(block)].T, begin):
                if place and row[nearest := int(row[:place].argmax())] >= near:
                    found[places[place]] = places[nearest]
    return found


def _grouped(forms: Sequence[str]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, form in enumerate(forms):
        places.setdefault(form, []).append(place)
    return places


def duplicate_tools(tools: Sequence[Mapping[str, Any]], near: float, encoder: str = "") -> list[int]:
    """Of every tool an earlier one that does the same in other words; -1 for none.

    Tools with semantics are compared within their forms: both must be about the same things, see ``tool_objects``; how
    they say it does not count, since the form says what they do. Without semantics texts count, see
    ``_opaque_duplicates``.

    Args:
        tools: of ``WorldSpec``, or of servers.
        near: least cosine similarity of the texts of two of which one has no semantics.
        encoder: see ``text_vectors``.

    Raises:
        UserError: the encoder cannot be used.
    """
    found = [-1] * len(tools)
    plain = [place for place, tool in enumerate(tools) if "schema" not in tool]
    words = {place: ToolWords(tools[place]) for place in plain}
    meanings = WordMeanings({word for tool in words.values() for word in tool.said}, encoder)
    groups = _grouped([form_of(tools[place]) for place in plain])
    for group in groups.values():
        places = [plain[each] for each in group]
        of_form = [words[place] for place in places]
        objects = without_common(of_form)
        for place, candidates in enumerate(earlier_candidates(objects, meanings)):
            for other in candidates:
                if meanings.same(
                    objects[place], of_form[other].said, objects[other], of_form[place].said
                ) and not _are_swapped(tools[places[place]], tools[places[other]]):
                    found[places[place]] = places[other]
                    break
    for place, other in _opaque_duplicates(tools, near, encoder):
        found[place] = other
    return found


def _are_swapped(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether a field has another part: what sets a price where a weight is small is no copy of the other way round."""
    roles, others = field_roles(first), field_roles(second)
    return any(role != others[name] for name, role in roles.items() if name in others)


def earlier_candidates(objects: Sequence[frozenset[str]], meanings: WordMeanings) -> Iterator[list[int]]:
    """Of every tool of one form the earlier ones that are most likely about the same, the likeliest first.

    Args:
        objects: what the tools are about.
        meanings: of the words.
    """
    vectors = meanings.vectors_of(objects)
    for begin in range(0, len(objects), _BLOCK):
        block = vectors[begin : begin + _BLOCK]
        likeness = block @ vectors[: begin + len(block)].T
        for place, row in enumerate(likeness, begin):
            many = min(_CANDIDATES, place)
            nearest = np.argpartition(-row[:place], many - 1)[:many] if many else np.zeros(0, int)
            yield sorted(map(int, nearest[row[nearest] >= _LIKELY]), key=lambda other, row=row: (-row[other], other))


def _opaque_duplicates(tools: Sequence[Mapping[str, Any]], near: float, encoder: str) -> Iterator[tuple[int, int]]:
    """Tools without semantics, and earlier ones with parameters of the same types whose texts are close.

    Words find a few candidates for each; the encoder reads those and no others.
    """
    kinds = [json.dumps(schema_kinds(tool)) for tool in tools]
    pairs: list[tuple[int, int]] = []
    for places in _grouped(kinds).values():
        if not any("schema" in tools[place] for place in places):
            continue
        vectors = hashed_vectors([tool_text(tools[place]) for place in places])
        for row, place in enumerate(places):
            if row and "schema" in tools[place]:
                likeness = vectors[:row] @ vectors[row]
                pairs += [(place, places[other]) for other in np.argsort(-likeness)[:_CANDIDATES]]
    read = sorted({place for pair in pairs for place in pair})
    rows = dict(zip(read, text_vectors([tool_text(tools[place]) for place in read], encoder), strict=True))
    for place, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        nearest = max((float(rows[place] @ rows[other]), -other) for _, other in group)
        if nearest[0] >= near:
            yield place, -nearest[1]


def distinct_worlds(near: float, encoder: str = "") -> Callable[[Sequence[Record]], Made]:
    """The stage that drops worlds whose tools are mostly those of an earlier one."""

    def work(records: Sequence[Record]) -> Made:
        tools = [(number, tool) for number, record in enumerate(records) for tool in record["world"]["tools"]]
        earlier = duplicate_tools([tool for _, tool in tools], near, encoder)
        doubled = [0] * len(records)
        for (number, _), other in zip(tools, earlier, strict=True):
            doubled[number] += other >= 0 and tools[other][0] != number
        made = Made([], [])
        for count, record in zip(doubled, records, strict=True):
            if count > MOST_DOUBLED * len(record["world"]["tools"]):
                made.dropped.append(("near-duplicate tools", record))
            else:
                made.kept.append(record)
        return made

    return work


def distinct_agents(near: float, encoder: str = "") -> Callable[[Sequence[Record]], Made]:
    """The stage that drops agents whose prompt and tools are those of an earlier one of the same world."""

    def work(records: Sequence[Record]) -> Made:
        vectors = text_vectors([record["system"] for record in records], encoder)
        forms = [json.dumps([record["world"]["name"], record["tools"]]) for record in records]
        made = Made([], [])
        for other, record in zip(nearest_earlier(vectors, near, forms), records, strict=True):
            made.kept.append(record) if other < 0 else made.dropped.append(("near-duplicate agent", record))
        return made

    return work


def tool_text(tool: Mapping[str, Any]) -> str:
    """What a tool says of itself."""
    fields = tool["schema"].get("properties", {}) if "schema" in tool else tool["parameters"]
    parameters = " ".join(f"{name} {field.get('description', '')}" for name, field in fields.items())
    return f"{tool['name'].replace('_', ' ')}: {tool['description']} {parameters}"
