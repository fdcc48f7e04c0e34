"""What is measured of a claim against its source: whether the source has its names, numbers and words in one place.

All of it holds for any text: the measures know no topic. The claim is compared with the source as a whole and with the
sentence that has most of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import math
import re
from typing import NamedTuple

import numpy as np

from k2jax.text.common_words import PRONOUNS
from k2jax.text.sentences import sentences_of
from k2jax.text.text_content import STEM, content_of, plain_marks

FEATURES = (
    "names in source", "numbers in source", "words in source", "names in sentence", "numbers in sentence",
    "words in sentence", "rest in second", "torn", "denial differs", "roles agree", "roles differ", "nothing named",
    "length",
)  # fmt: skip
"""Of a claim, in order."""
MOST_SENTENCES = 400
"""Of a source or an answer that are read."""
_DENIALS = frozenset(
    ("not", "no", "never", "nobody", "none", "nothing", "neither", "nor", "without", "hardly", "cannot", "n't")
)
_CLAUSES = re.compile(r", (?:and|but) |; ")
_WORD = re.compile(r"[^\W\d_]+(?:[-'][^\W\d_]+)*")
_BY = re.compile(r"\b(?:by|from|to|under|of)\b")


class SentenceEvidence(NamedTuple):
    """What a sentence of a source or a claim names.

    Attributes:
        names: each the words of one name, in the order of the text; those of the sentence before it come first where it
            has a pronoun or no names.
        doubtful: words of names that stand at its beginning alone, and may be none.
        numbers: plain.
        words: beginnings of its words.
        is_denied: whether it says that something is not so.
        links: words between names that turn roles round, such as ``by``.
    """

    names: tuple[frozenset[str], ...]
    doubtful: frozenset[str]
    numbers: frozenset[str]
    words: frozenset[str]
    is_denied: bool
    links: frozenset[str]

    @property
    def anchors(self) -> frozenset[str]:
        """Words of names, and numbers."""
        return _union(self.names) | self.numbers


_NOTHING = SentenceEvidence((), frozenset(), frozenset(), frozenset(), False, frozenset())


def sentences_evidence(text: str) -> list[SentenceEvidence]:
    """The evidence of every sentence of a text, of the first ``MOST_SENTENCES``."""
    return [one for _, clauses in _read(text, clauses=False) for one in clauses]


def claims_of(text: str) -> list[tuple[str, list[SentenceEvidence]]]:
    """The sentences of a text that claim something, with the evidence of their clauses.

    A greeting or a question claims nothing. A sentence of several clauses is supported where all of them are.
    """
    found = []
    for sentence, clauses in _read(text, clauses=True):
        claiming = [one for one in clauses if len(one.words) >= 2 or one.anchors - one.doubtful]
        if claiming and not sentence.endswith("?"):
            found.append((sentence, claiming))
    return found


def _read(text: str, clauses: bool) -> Iterator[tuple[str, list[SentenceEvidence]]]:
    before: tuple[frozenset[str], ...] = ()
    for sentence in sentences_of(plain_marks(text))[:MOST_SENTENCES]:
        found = []
        for part in _CLAUSES.split(sentence) if clauses else [sentence]:
            found.append(_part_evidence(part, before))
            before = found[-1].names
        yield sentence, found


def _part_evidence(part: str, before: tuple[frozenset[str], ...]) -> SentenceEvidence:
    """The evidence of a sentence or clause behind one with these names."""
    content = content_of(part)
    bare = [token.strip('.,;:!?"()') for token in part.lower().replace("n't", " n't").split()]
    names = _names_in_order(part, content.names | content.doubtful)
    if before and (not names or not PRONOUNS.isdisjoint(bare)):
        names = tuple(dict.fromkeys((*before, *names)))
    is_denied, links = not _DENIALS.isdisjoint(bare), frozenset(_BY.findall(part))
    return SentenceEvidence(names, content.doubtful, content.numbers, content.words, is_denied, links)


def _names_in_order(part: str, words: frozenset[str]) -> tuple[frozenset[str], ...]:
    """Names of the words that belong to some: those that follow each other are one name."""
    found: list[set[str]] = []
    end = -2
    for match in _WORD.finditer(part):
        word = re.sub(r"'s?$", "", match[0])
        if word in words:
            found[-1].add(word) if match.start() == end + 1 else found.append({word})
            end = match.end()
    return tuple(dict.fromkeys(map(frozenset, found)))


def evidence(source: Sequence[SentenceEvidence], claim: SentenceEvidence) -> np.ndarray:
    """The features of a claim, float64 ``[len(FEATURES)]``.

    Args:
        source: of ``sentences_evidence``.
        claim: one of them, of another text.
    """
    stated = _union(one.words for one in source)
    names = frozenset(
        name for name in _union(claim.names) if name not in claim.doubtful or name.lower()[:STEM] not in stated
    )
    numbers = claim.numbers
    words = claim.words - frozenset(name.lower()[:STEM] for name in names)
    ranked = sorted(source, key=lambda one: _likeness(one, names, numbers, words), reverse=True)
    best = ranked[0] if ranked else _NOTHING
    rest = (names | numbers) - best.anchors
    second = _share(rest, ranked[1].anchors) if rest and len(ranked) > 1 else 1.0
    agree = _roles(best, claim)
    owned = [one.anchors & (names | numbers) for one in source]
    torn = sum(bool(one) and one < names | numbers for one in owned) if rest else 0
    return np.array(
        [
            _share(names, _union(_union(one.names) for one in source)),
            _share(numbers, _union(one.numbers for one in source)),
            _share(words, stated),
            _share(names, _union(best.names)),
            _share(numbers, best.numbers),
            _share(words, best.words),
            second,
            min(torn, 5) / 5,
            float(best.is_denied != claim.is_denied),
            float(agree > 0),
            float(agree < 0),
            float(not names and not numbers),
            math.log1p(len(words)) / 3,
        ]
    )


def _likeness(one: SentenceEvidence, names: frozenset[str], numbers: frozenset[str], words: frozenset[str]) -> float:
    return 2 * len(names & _union(one.names)) + 2 * len(numbers & one.numbers) + 1.5 * len(words & one.words)


def _roles(source: SentenceEvidence, claim: SentenceEvidence) -> int:
    """1 where two names of both stand in the same roles, as far as order and ``by`` say; -1 where not; else 0."""
    if len(claim.names) != 2:
        return 0
    first, second = (next((n for n, own in enumerate(source.names) if own & name), -1) for name in claim.names)
    if first < 0 or second < 0 or first == second:
        return 0
    is_same_order = first < second
    is_same_voice = ("by" in source.links) == ("by" in claim.links)
    return 1 if is_same_order == is_same_voice else -1


def _share(part: frozenset[str], whole: frozenset[str]) -> float:
    return len(part & whole) / len(part) if part else 1.0


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)
