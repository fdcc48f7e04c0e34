"""Constraints on the form of an answer, each with its wording, its parameters and its check."""

from __future__ import annotations

from collections.abc import Callable
import json
import random
import re
from typing import Any, NamedTuple

_KEYWORDS = ("always", "between", "careful", "morning", "simple", "together", "water", "world")
_ENDINGS = ("Is there anything else?", "That is all.", "I hope this helps.")
_TITLE = re.compile(r"<<[^<>\n]+>>")
_BULLET = re.compile(r"^[^\S\n]*[-*] \S", re.MULTILINE)  # time in proportion to any text, as of the next two
_STARS = re.compile(r"^[^\S\n]*\*\*\*[^\S\n]*$", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<![.!?])[.!?]+(?:\s|$)")


class Constraint(NamedTuple):
    """One kind of constraint.

    Attributes:
        text: its wording with a placeholder for every parameter.
        draw: parameters at random, JSON values.
        holds: whether an answer meets it; called with the answer and the parameters.
    """

    text: str
    draw: Callable[[random.Random], list[Any]]
    holds: Callable[..., bool]


def words(text: str) -> list[str]:
    """The words of a text: runs of letters, digits, apostrophes and hyphens within."""
    return re.findall(r"\w+(?:['\u2019-]\w+)*", text)


def sentences(text: str) -> int:
    """Number of sentences: of runs of text that hold a word and end with a period, ``!``, ``?`` or the text."""
    return sum(bool(words(part)) for part in _SENTENCE_END.split(text))


def _occurrences(text: str, word: str) -> int:
    return sum(found.casefold() == word for found in words(text))


def _is_json(text: str) -> bool:
    text = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _paragraphs(text: str, count: int) -> bool:
    parts = _STARS.split(text)
    return len(parts) == count and all(words(part) for part in parts)


def _no_parameters(rng: random.Random) -> list[Any]:
    return []


def _keyword(rng: random.Random) -> list[Any]:
    return [rng.choice(_KEYWORDS)]


CONSTRAINTS: dict[str, Constraint] = {
    "most_words": Constraint(
        "Use at most {} words.", lambda rng: [rng.randrange(30, 120, 10)], lambda text, most: len(words(text)) <= most
    ),
    "least_words": Constraint(
        "Use at least {} words.", lambda rng: [rng.randrange(20, 80, 10)], lambda text, n: len(words(text)) >= n
    ),
    "sentences": Constraint(
        "Write exactly {} sentences.", lambda rng: [rng.randint(2, 6)], lambda text, n: sentences(text) == n
    ),
    "include": Constraint(
        'Use the word "{}" at least {} times.',
        lambda rng: [rng.choice(_KEYWORDS), rng.randint(2, 3)],
        lambda text, word, n: _occurrences(text, word) >= n,
    ),
    "avoid": Constraint('Do not use the word "{}".', _keyword, lambda text, word: not _occurrences(text, word)),
    "lowercase": Constraint("Use no capital letters.", _no_parameters, lambda text: text == text.lower()),
    "uppercase": Constraint("Use capital letters only.", _no_parameters, lambda text: text == text.upper()),
    "no_commas": Constraint("Use no commas.", _no_parameters, lambda text: "," not in text),
    "no_digits": Constraint("Use no digits.", _no_parameters, lambda text: not re.search(r"\d", text)),
    "ending": Constraint(
        'End your answer with exactly this: "{}"',
        lambda rng: [rng.choice(_ENDINGS)],
        lambda text, ending: text.rstrip().casefold().endswith(ending.casefold()),
    ),
    "bullets": Constraint(
        'Include exactly {} bullet points, on lines that begin with "- ".',
        lambda rng: [rng.randint(2, 5)],
        lambda text, n: len(_BULLET.findall(text)) == n,
    ),
    "paragraphs": Constraint(
        "Write exactly {} paragraphs, separated by lines of three asterisks (***).",
        lambda rng: [rng.randint(2, 4)],
        _paragraphs,
    ),
    "json": Constraint("Write all of your answer as one JSON object.", _no_parameters, _is_json),
    "title": Constraint(
        "Give your answer a title in double angle brackets, such as <<title>>.",
        _no_parameters,
        lambda text: bool(_TITLE.search(text)),
    ),
}
"""Kinds of constraints by name."""

GROUPS: dict[str, tuple[str, ...]] = {
    "length": ("most_words", "least_words"),
    "words": ("include", "avoid"),
    "case": ("lowercase", "uppercase"),
    "characters": ("no_commas", "no_digits"),
    "structure": ("sentences", "bullets", "paragraphs", "json", "ending"),
    "title": ("title",),
}
"""Names of constraints that exclude each other, by what they are about."""
