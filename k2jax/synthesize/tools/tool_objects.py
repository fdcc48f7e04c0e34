"""What a tool is about: the words for its records and fields, and whether those of two tools mean the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
import functools
import re
from typing import Any
import zlib

import numpy as np

from k2jax.synthesize.sentence_vectors import SentenceEncoder, encoder_folder

ALIKE = 0.78
"""Cosine similarity of two words from which they mean the same; ``junior`` and ``senior`` have 0.76."""
COMMON = 0.5
"""Share of the tools of one form with a word, from which it says what the form says already."""
_FEW = 10
_WIDTH = 128
_PLURALS = (("ies", "y"), ("sses", "ss"), ("shes", "sh"), ("ches", "ch"), ("xes", "x"), ("ss", "ss"), ("s", ""))


def words_of(text: str) -> list[str]:
    """The words of a text or name in singular, in lower case and once each, in order."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text).lower()
    return list(dict.fromkeys(map(_singular, re.findall(r"[^\W_]+", spaced))))


@functools.lru_cache(maxsize=1 << 16)
def _singular(word: str) -> str:
    for ending, other in _PLURALS:
        if word.endswith(ending) and len(word) > len(ending) + 2:
            return word[: len(word) - len(ending)] + other
    return word


class ToolWords:
    """The words of one tool.

    Args:
        tool: of ``WorldSpec``.

    Attributes:
        said: all words of its name, description and parameters, and of the names of its semantics.
        objects: those for what it is about: they stand in its name or description and in a name of its semantics, or in
            both of the former behind the first word, which says what is done.
    """

    def __init__(self, tool: Mapping[str, Any]):
        in_name, in_description = words_of(tool["name"]), words_of(tool["description"])
        name, description = set(in_name), set(in_description)
        named = set(words_of(" ".join(_names([tool["requires"], tool["effects"], tool["returns"]]))))
        parameters = " ".join(f"{key} {field.get('description', '')}" for key, field in tool["parameters"].items())
        self.said = name | description | named | set(words_of(parameters))
        self.objects = ((name | description) & named) | (set(in_name[1:]) & set(in_description[1:]))


_COLLECTIONS = ("field", "exists", "set", "create", "delete", "record", "find")


def _names(value: Any) -> Iterator[str]:
    """The names of collections and fields of semantics."""
    if isinstance(value, list):
        for part in value:
            yield from _names(part)
    elif isinstance(value, Mapping):
        for kind, of in value.items():
            if kind == "new":
                yield of
            elif kind in _COLLECTIONS:
                yield of[0]
                if kind in ("field", "set"):
                    yield of[2]
                if kind in ("create", "find"):
                    yield from of[-1]
                yield from _names(of[1:])
            else:
                yield from _names(of)


def without_common(tools: Sequence[ToolWords]) -> list[frozenset[str]]:
    """The objects of tools of one form without the words that many of them have, which are the form's."""
    if len(tools) < _FEW:
        return [frozenset(tool.objects) for tool in tools]
    counts = Counter(word for tool in tools for word in tool.objects)
    common = {word for word, count in counts.items() if count > COMMON * len(tools)}
    return [frozenset(tool.objects - common) for tool in tools]


class WordMeanings:
    """Which words mean the same.

    Args:
        words: all that are asked about.
        encoder: see ``encoder_folder``; empty knows no two words that do.

    Raises:
        UserError: the encoder cannot be used.
    """

    def __init__(self, words: Iterable[str], encoder: str = ""):
        known = sorted(set(words)) if encoder else []
        self._places = {word: place for place, word in enumerate(known)}
        vectors = SentenceEncoder(encoder_folder(encoder)).vectors(known) if known else np.zeros((0, 1), np.float32)
        self._vectors, self._drawn = vectors, {}

    def has(self, word: str, others: frozenset[str] | set[str]) -> bool:
        """Whether one of the other words means what a word means."""
        if word in others:
            return True
        if word not in self._places:
            return False
        places = [self._places[other] for other in others if other in self._places]
        return bool(places) and float((self._vectors[places] @ self._vectors[self._places[word]]).max()) >= ALIKE

    def vectors_of(self, sets: Sequence[frozenset[str]]) -> np.ndarray:
        """Unit vectors of sets of words, of which rare ones count more, float32 ``[sets, dimensions]``."""
        counts = Counter(word for words in sets for word in words)
        width = self._vectors.shape[1] if self._places else _WIDTH
        rows = np.zeros((len(sets), width), np.float32)
        for row, words in zip(rows, sets, strict=True):
            for word in sorted(words):
                row += np.log((1 + len(sets)) / counts[word]) * self._vector(word)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)

    def _vector(self, word: str) -> np.ndarray:
        if self._places:
            return self._vectors[self._places[word]]
        if word not in self._drawn:
            self._drawn[word] = np.random.default_rng(zlib.crc32(word.encode())).standard_normal(_WIDTH, np.float32)
        return self._drawn[word]

    def same(
        self, first: frozenset[str], said_by_second: set[str], second: frozenset[str], said_by_first: set[str]
    ) -> bool:
        """Whether each of two tools says what the other one is about."""
        return all(self.has(word, said_by_second) for word in first) and all(
            self.has(word, said_by_first) for word in second
        )
