"""What is measured of a claim against its source: whether the source has its names, numbers and words in one place.

All of it holds for any text: the measures know no topic. The claim is compared with the source as a whole and with the
sentence that has most of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import math
import re
from typing import NamedTuple

import numpy as np

from k2jax.text.common_words import PRONOUNS
from k2jax.text.sentences import sentences_of
from k2jax.text.text_content import content_of, plain_marks

FEATURES = (
    "names in source", "numbers in source", "words in source", "names in sentence", "numbers in sentence",
    "words in sentence", "rest in second", "torn", "denial differs", "roles agree", "roles differ", "nothing named",
    "length",
)  # fmt: skip
"""Of a claim, in order."""
MOST_SENTENCES = 400
"""Of a source or an answer that are read."""
_DENIALS = frozenset("not no never nobody none nothing neither nor without hardly cannot n't".split())  # noqa: SIM905
_BY = re.compile(r"\b(?:by|from|to|under|of)\b")


class SentenceEvidence(NamedTuple):
    """What a sentence of a source or a claim names.

    Attributes:
        names: in the order of the text, those of the sentence before it where it has a pronoun or none of its own.
        numbers: plain.
        words: beginnings of its words.
        is_denied: whether it says that something is not so.
        links: words between names that turn roles round, such as ``by``.
    """

    names: tuple[str, ...]
    numbers: frozenset[str]
    words: frozenset[str]
    is_denied: bool
    links: frozenset[str]

    @property
    def anchors(self) -> frozenset[str]:
        """Names and numbers."""
        return frozenset(self.names) | self.numbers


def sentences_evidence(text: str) -> list[SentenceEvidence]:
    """The evidence of every sentence of a text, of the first ``MOST_SENTENCES``."""
    text = plain_marks(text)
    whole = content_of(text)
    found: list[SentenceEvidence] = []
    before: tuple[str, ...] = ()
    for sentence in sentences_of(text)[:MOST_SENTENCES]:
        content = content_of(sentence)
        tokens = sentence.lower().replace("n't", " n't").split()
        bare = [token.strip(".,;:!?\"()") for token in tokens]
        own = content.names | content.doubtful | (content.doubtful & whole.names)
        names = _in_order(sentence, own)
        if before and (not names or not PRONOUNS.isdisjoint(bare)):
            names = tuple(dict.fromkeys((*before, *names)))
        found.append(
            SentenceEvidence(
                names, content.numbers, content.words, not _DENIALS.isdisjoint(bare), frozenset(_BY.findall(sentence))
            )
        )
        before = names
    return found


def evidence(source: Sequence[SentenceEvidence], claim: SentenceEvidence) -> np.ndarray:
    """The features of a claim, float64 ``[len(FEATURES)]``.

    Args:
        source: of ``sentences_evidence``.
        claim: one of them, of another text.
    """
    names, numbers = frozenset(claim.names), claim.numbers
    words = claim.words - frozenset(name.lower()[:5] for name in names)
    every = _union(frozenset(one.names) for one in source)
    ranked = sorted(source, key=lambda one: _likeness(one, names, numbers, words), reverse=True)
    best = ranked[0] if ranked else SentenceEvidence((), frozenset(), frozenset(), False, frozenset())
    rest = (names | numbers) - best.anchors
    second = _share(rest, ranked[1].anchors) if rest and len(ranked) > 1 else 1.0
    agree = _roles(best, claim)
    owned = [one.anchors & claim.anchors for one in source]
    torn = sum(bool(one) and one < claim.anchors for one in owned) if rest else 0
    return np.array(
        [
            _share(names, every),
            _share(numbers, _union(one.numbers for one in source)),
            _share(words, _union(one.words for one in source)),
            _share(names, frozenset(best.names)),
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


def claims_of(text: str) -> list[tuple[str, SentenceEvidence]]:
    """The sentences of a text that claim something, with their evidence; a greeting or a question claims nothing."""
    sentences = sentences_of(text)[:MOST_SENTENCES]
    found = sentences_evidence(text)
    return [
        (sentence, one)
        for sentence, one in zip(sentences, found, strict=True)
        if not sentence.endswith("?") and (len(one.words) >= 2 or one.anchors)
    ]


def _likeness(one: SentenceEvidence, names: frozenset[str], numbers: frozenset[str], words: frozenset[str]) -> float:
    return 2 * len(names & set(one.names)) + 2 * len(numbers & one.numbers) + 1.5 * len(words & one.words)


def _roles(source: SentenceEvidence, claim: SentenceEvidence) -> int:
    """1 where two names of both stand in the same roles, as far as order and ``by`` say; -1 where not; else 0."""
    shared = [name for name in claim.names if name in source.names]
    if len(shared) != 2:
        return 0
    is_same_order = source.names.index(shared[0]) < source.names.index(shared[1])
    is_same_voice = ("by" in source.links) == ("by" in claim.links)
    return 1 if is_same_order == is_same_voice else -1


def _in_order(sentence: str, names: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=sentence.find))


def _share(part: frozenset[str], whole: frozenset[str]) -> float:
    return len(part & whole) / len(part) if part else 1.0


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)
