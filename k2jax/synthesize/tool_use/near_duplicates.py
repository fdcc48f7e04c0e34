"""Near-duplicates of tools and agents: texts whose n-grams are much the same, and whose parameters agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import itertools
import json
import re
from typing import Any
import zlib

import numpy as np

from k2jax.synthesize.stages import Made, Record

WIDTH = 512
"""Dimensions of a text's vector."""
_SHARE = 0.5
"""Of a world's tools, from which on it is a duplicate."""
_BLOCK = 2048


def vectors(texts: Sequence[str]) -> np.ndarray:
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


def nearest_earlier(texts: Sequence[str], near: float) -> list[int]:
    """Of every text the nearest earlier one, by cosine similarity, where that is at least ``near``; -1 for none."""
    found = [-1] * len(texts)
    of = vectors(texts)
    for begin in range(0, len(texts), _BLOCK):
        block = of[begin : begin + _BLOCK]
        for place, row in enumerate(block @ of[: begin + len(block)].T, begin):
            if place and row[nearest := int(row[:place].argmax())] >= near:
                found[place] = nearest
    return found


def distinct_worlds(near: float) -> Callable[[Sequence[Record]], Made]:
    """The stage that drops worlds whose tools are mostly those of an earlier one."""

    def work(records: Sequence[Record]) -> Made:
        tools = [(number, tool) for number, record in enumerate(records) for tool in record["world"]["tools"]]
        earlier = nearest_earlier([_tool_text(tool) for _, tool in tools], near)
        doubled = [0] * len(records)
        for (number, tool), other in zip(tools, earlier, strict=True):
            if other >= 0 and tools[other][0] != number and _same_form(tool, tools[other][1]):
                doubled[number] += 1
        made = Made([], [])
        for count, record in zip(doubled, records, strict=True):
            if count > _SHARE * len(record["world"]["tools"]):
                made.dropped.append(("tools are near-duplicates", record))
            else:
                made.kept.append(record)
        return made

    return work


def distinct_agents(near: float) -> Callable[[Sequence[Record]], Made]:
    """The stage that drops agents whose prompt and tools are those of an earlier one."""

    def work(records: Sequence[Record]) -> Made:
        earlier = nearest_earlier([record["system"] for record in records], near)
        made = Made([], [])
        for other, record in zip(earlier, records, strict=True):
            same = other >= 0 and records[other]["tools"] == record["tools"]
            if same and records[other]["world"]["name"] == record["world"]["name"]:
                made.dropped.append(("near-duplicate agent", record))
            else:
                made.kept.append(record)
        return made

    return work


def _tool_text(tool: Mapping[str, Any]) -> str:
    parameters = " ".join(f"{name} {field.get('description', '')}" for name, field in tool["parameters"].items())
    return f"{tool['name'].replace('_', ' ')} {tool['description']} {parameters}"


def _same_form(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two tools have parameters of the same types and as many effects."""
    return _form(one) == _form(other)


def _form(tool: Mapping[str, Any]) -> str:
    kinds = sorted((field["type"], bool(field.get("optional"))) for field in tool["parameters"].values())
    return json.dumps([kinds, len(tool["effects"])])
