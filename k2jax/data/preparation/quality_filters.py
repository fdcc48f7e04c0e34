"""Rules of quality that a document passes or fails, each a pure function of its text with the bounds of its report.

Sources: Rae et al. 2021 (Gopher, tables A1 and A2), Raffel et al. 2020 (C4, section 2.2), Penedo et al. 2024 (FineWeb,
section 3.6). Words are what stands between white space, lines what is not blank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
import functools
import math
import re
from typing import NamedTuple

_BULLETS = ("•", "‣", "▪", "●", "-", "*")
_ELLIPSES = ("...", "…")
_TERMINAL = (*".?!\"'”", "\u3002", "\uff01", "\uff1f")  # with those of Chinese
_STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
_SENTENCE = re.compile("[.?!]+[\"'”)]*(?=\\s|$)|[\u3002\uff01\uff1f]")
_PARAGRAPHS = re.compile(r"\n{2,}")
_SHORT = 30  # characters of a short line
_COMMON = {2: 0.20, 3: 0.18, 4: 0.16}
"""Share of the characters that the most frequent n-gram may have, by n."""
_REPEATED = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
"""Share of the characters that all n-grams may have which occur more than once, by n."""


class MeasuredText:
    """A text and its parts, which are looked for when a rule first asks for them."""

    def __init__(self, text: str):
        """Looks for nothing yet."""
        self.text = text

    @functools.cached_property
    def words(self) -> list[str]:
        """What stands between white space."""
        return self.text.split()

    @functools.cached_property
    def lines(self) -> list[str]:
        """Lines that are not blank, without white space around them."""
        return [line for each in self.text.split("\n") if (line := each.strip())]

    @functools.cached_property
    def paragraphs(self) -> list[str]:
        """What stands between blank lines."""
        return [paragraph for each in _PARAGRAPHS.split(self.text) if (paragraph := each.strip())]


class FilterRule(NamedTuple):
    """A rule: what it measures, and between which bounds, both included, a document passes."""

    measure: Callable[[MeasuredText], float]
    least: float = -math.inf
    most: float = math.inf

    def passes(self, value: float) -> bool:
        """Whether a document of this value passes."""
        return self.least <= value <= self.most


def _share(count: float, total: float) -> float:
    return count / total if total else 0.0


def _lines_with(text: MeasuredText, test: Callable[[str], bool]) -> float:
    return _share(sum(map(test, text.lines)), len(text.lines))


def _mean_word_length(text: MeasuredText) -> float:
    return _share(sum(map(len, text.words)), len(text.words))


def _symbols(text: MeasuredText) -> float:
    """The more frequent of number signs and ellipses, over words."""
    signs = max(text.text.count("#"), sum(map(text.text.count, _ELLIPSES)))
    return _share(signs, len(text.words))


def _repeated(pieces: Sequence[str], share: float, share_of_characters: float) -> float:
    """Repetitions among pieces and their characters, the larger of both over its bound."""
    seen: set[str] = set()
    count = characters = 0
    for piece in pieces:
        if piece in seen:
            count, characters = count + 1, characters + len(piece)
        seen.add(piece)
    of_characters = _share(characters, sum(map(len, pieces)))
    return max(_share(count, len(pieces)) / share, of_characters / share_of_characters)


def _common_ngrams(text: MeasuredText) -> float:
    """Characters of the most frequent n-gram over all, by its bound, the largest of n = 2, 3, 4; 0 where all differ."""
    total, largest = sum(map(len, text.words)), 0.0
    for size, most in _COMMON.items():
        grams = Counter(zip(*(text.words[start:] for start in range(size)), strict=False))
        if grams and (count := max(grams.values())) > 1:
            length = max(sum(map(len, gram)) for gram, times in grams.items() if times == count)
            largest = max(largest, _share(length * count, total) / most)
    return largest


def _repeated_ngrams(text: MeasuredText) -> float:
    """Characters of words in n-grams that occurred before over all, by its bound, the largest of n = 5 to 10."""
    words, largest = text.words, 0.0
    total = sum(map(len, words))
    for size, most in _REPEATED.items():
        seen: set[tuple[str, ...]] = set()
        characters, counted = 0, 0  # words before ``counted`` are counted, each once
        for start, gram in enumerate(zip(*(words[begin:] for begin in range(size)), strict=False)):
            if gram in seen:
                characters += sum(map(len, words[max(start, counted) : start + size]))
                counted = start + size
            seen.add(gram)
        largest = max(largest, _share(characters, total) / most)
    return largest


def _stop_words(text: MeasuredText) -> float:
    return len(_STOP_WORDS.intersection(word.lower() for word in text.words))


def _alphabetic(text: MeasuredText) -> float:
    return _share(sum(any(map(str.isalpha, word)) for word in text.words), len(text.words))


FILTERS: Mapping[str, FilterRule] = {
    "gopher_words": FilterRule(lambda text: len(text.words), 50, 100_000),
    "gopher_mean_word_length": FilterRule(_mean_word_length, 3, 10),
    "gopher_symbols": FilterRule(_symbols, most=0.1),
    "gopher_bullets": FilterRule(lambda text: _lines_with(text, lambda line: line.startswith(_BULLETS)), most=0.9),
    "gopher_ellipsis": FilterRule(lambda text: _lines_with(text, lambda line: line.endswith(_ELLIPSES)), most=0.3),
    "gopher_alphabetic": FilterRule(_alphabetic, least=0.8),
    "gopher_stop_words": FilterRule(_stop_words, least=2),
    "gopher_repeated_lines": FilterRule(lambda text: _repeated(text.lines, 0.3, 0.2), most=1),
    "gopher_repeated_paragraphs": FilterRule(lambda text: _repeated(text.paragraphs, 0.3, 0.2), most=1),
    "gopher_common_ngrams": FilterRule(_common_ngrams, most=1),
    "gopher_repeated_ngrams": FilterRule(_repeated_ngrams, most=1),
    "c4_sentences": FilterRule(lambda text: len(_SENTENCE.findall(text.text)), least=5),
    "c4_curly_brackets": FilterRule(lambda text: text.text.count("{"), most=0),
    "c4_lorem_ipsum": FilterRule(lambda text: text.text.lower().count("lorem ipsum"), most=0),
    "fineweb_line_ends": FilterRule(lambda text: _lines_with(text, lambda line: line.endswith(_TERMINAL)), least=0.12),
    "fineweb_short_lines": FilterRule(lambda text: _lines_with(text, lambda line: len(line) <= _SHORT), most=0.67),
    "fineweb_repeated_lines": FilterRule(lambda text: _repeated(text.lines, math.inf, 0.1), most=1),
    "fineweb_new_lines": FilterRule(lambda text: _share(text.text.count("\n"), len(text.words)), most=0.3),
}
"""Rules by name. Those that have several bounds measure the largest value over its bound, of which 1 passes."""
