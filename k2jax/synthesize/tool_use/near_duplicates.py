"""Near-duplicates of tools and agents: texts that are close, and forms that are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import itertools
import json
import re
from typing import Any
import zlib

import numpy as np

from k2jax.synthesize.sentence_vectors import SentenceEncoder, encoder_folder
from k2jax.synthesize.stages import Made, Record

WIDTH = 512
"""Dimensions of a text's vector."""
_SHARE = 0.5
"""Of a world's tools, from which on it is a duplicate."""
_BLOCK = 2048


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

    Args:
        tools: of ``WorldSpec``.
        near: least cosine similarity of their texts.
        encoder: see ``text_vectors``.

    Raises:
        UserError: the encoder cannot be used.
    """
    texts = [tool_text(tool) for tool in tools]
    distinct = list(dict.fromkeys(texts))
    rows = dict(zip(distinct, text_vectors(distinct, encoder), strict=True))
    return nearest_earlier(np.array([rows[text] for text in texts]), near, [form_of(tool) for tool in tools])


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
            if count > _SHARE * len(record["world"]["tools"]):
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
    parameters = " ".join(f"{name} {field.get('description', '')}" for name, field in tool["parameters"].items())
    return f"{tool['name'].replace('_', ' ')}: {tool['description']} {parameters}"


def form_of(tool: Mapping[str, Any]) -> str:
    """What a tool does, without its words: types of parameters, and semantics whose names are numbers in order."""
    kinds = sorted((field["type"], bool(field.get("optional"))) for field in tool["parameters"].values())
    requires = [required["condition"] for required in tool["requires"]]
    return json.dumps([kinds, _numbered([requires, tool["effects"], tool["returns"]], {})])


_NAMED = {"arg": "argument", "given": "argument", "this": "field", "new": "collection"}
_COLLECTIONS = ("field", "exists", "set", "create", "delete", "record", "find")


def _numbered(value: Any, numbers: dict[str, int]) -> Any:
    """A form of ``semantics`` with numbers in the place of names of collections, fields and arguments."""

    def number(kind: str, name: Any) -> int:
        return numbers.setdefault(f"{kind} {name}", len(numbers))

    if isinstance(value, list):
        return [_numbered(part, numbers) for part in value]
    if not isinstance(value, Mapping):
        return value
    [(kind, of)] = value.items() if len(value) == 1 else [("", value)]
    if kind in _NAMED:
        return {kind: number(_NAMED[kind], of)}
    if kind in _COLLECTIONS:
        parts: list[Any] = [number("collection", of[0])]
        for place, part in enumerate(of[1:], 1):
            if kind in ("field", "set") and place == 2:
                parts.append(number("field", part))
            elif kind in ("create", "find") and isinstance(part, Mapping) and place == len(of) - 1:
                parts.append([[number("field", name), _numbered(each, numbers)] for name, each in part.items()])
            else:
                parts.append(_numbered(part, numbers))
        return {kind: parts}
    return [[name, _numbered(part, numbers)] for name, part in value.items()]
