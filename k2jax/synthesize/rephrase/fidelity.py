"""What a rephrasing has changed, left out or added, without a model: its names, numbers and equations are its source's.

The check knows no templates and no facts. What is said of equal names and numbers it cannot see, but for values that
have changed places; nor a name that stands alone at the beginning of a sentence and nowhere else, which looks like any
other word there. That is for the judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
import itertools
from typing import NamedTuple

from k2jax.text.common_words import PRONOUNS
from k2jax.text.sentences import sentences_of
from k2jax.text.text_content import TextContent, content_of, equations_of, plain_marks

KINDS = ("changed name", "changed number", "changed equation", "omission", "addition", "mixed up")


class Infidelity(NamedTuple):
    """Something that a rephrasing does not have as its source has it.

    Attributes:
        kind: of ``KINDS``.
        what: the names, numbers or words.
    """

    kind: str
    what: str


def infidelities(source: str, text: str, *, known: str = "", compares_words: bool = True) -> list[Infidelity]:
    """What a rephrasing does not have as its source has it; empty where nothing is found.

    Args:
        source: what was rephrased.
        text: the rephrasing.
        known: other text whose names and numbers may be repeated, such as the document's earlier parts.
        compares_words: whether names and other words are compared as well as numbers and equations. Between languages
            they cannot be, and in mathematics sentences begin with verbs of every kind.
    """
    source, text, known = map(plain_marks, (source, text, known))
    found: list[Infidelity] = []
    equations, written = equations_of(source), equations_of(text)
    _compare("equation", equations, written, written - equations - equations_of(known), found)
    ours, theirs, allowed = map(content_of, (source, text, known))
    _compare("number", ours.numbers, theirs.numbers, theirs.digits - ours.numbers - allowed.numbers, found)
    if not compares_words:
        return found
    added = theirs.names - ours.names - ours.doubtful - allowed.names - allowed.doubtful
    added = _without(added, ours.lower | allowed.lower)  # a word that has a capital before a name, as Comet Encke
    _compare("name", _without(ours.names, theirs.lower), theirs.names | theirs.doubtful, added, found)
    if not found:
        parts = sentences_of(source)
        contents = [content_of(part) for part in parts]
        found += _omitted(parts, contents, theirs)
        sources = [_named(content, ours.names) for content in contents]
        owned = _owned([one.names | one.numbers for one in sources])
        for sentence in sentences_of(text):
            found += _mixed_up(sources, owned, _named(content_of(sentence), ours.names), sentence)
    return found


def _compare(
    what: str, source: frozenset[str], text: frozenset[str], added: frozenset[str], found: list[Infidelity]
) -> None:
    """Notes what is missing and what is new."""
    missing = source - text
    if missing and added:
        found.append(Infidelity(f"changed {what}", f"{_listed(missing)} became {_listed(added)}"))
    elif missing:
        found.append(Infidelity("omission", _listed(missing)))
    elif added:
        found.append(Infidelity("addition", _listed(added)))


def _omitted(parts: Sequence[str], contents: Sequence[TextContent], text: TextContent) -> list[Infidelity]:
    """Sentences of which nothing is left: none of the words that only they have."""
    own = _owned([content.words for content in contents])
    return [
        Infidelity("omission", part)
        for part, words, content in zip(parts, own, contents, strict=True)
        if words and not words & text.words and not content.numbers
    ]


def _mixed_up(
    sources: Sequence[_Named], owned: Sequence[frozenset[str]], text: _Named, sentence: str
) -> list[Infidelity]:
    """Whether a value stands with what belongs to another one and without what belongs to it, or of somebody else."""
    said = [(text.names | text.numbers) & one for one in owned]
    torn = [number for number, one in enumerate(said) if one and one < owned[number]]
    if len(torn) > 1:
        return [Infidelity("mixed up", sentence)]
    about = [source.names for source, one in zip(sources, said, strict=True) if one & source.numbers]
    if len(about) == 1 and about[0] and text.doubtful and not text.names & about[0] and not _has_pronoun(sentence):
        return [Infidelity("changed name", f"{_listed(about[0])} became {_listed(text.doubtful)}")]
    return []


class _Named(NamedTuple):
    """Names and numbers of a sentence."""

    names: frozenset[str]
    doubtful: frozenset[str]
    numbers: frozenset[str]


def _named(content: TextContent, names: frozenset[str]) -> _Named:
    """What a sentence names; a doubtful word is a name where the source has it as one."""
    return _Named(content.names | (content.doubtful & names), content.doubtful - names, content.numbers)


def _has_pronoun(sentence: str) -> bool:
    return not PRONOUNS.isdisjoint(sentence.lower().replace("'", " ").split())


def _without(names: frozenset[str], lower: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name in names if name.lower() not in lower)


def _owned(sets: Sequence[frozenset[str]]) -> list[frozenset[str]]:
    """Of every set what no other one has."""
    counts = Counter(itertools.chain(*sets))
    return [frozenset(one for one in each if counts[one] == 1) for each in sets]


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))
