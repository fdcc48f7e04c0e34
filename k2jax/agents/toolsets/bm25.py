"""BM25, the ranking function of full-text search."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
import heapq
import math
import re

K1, B = 1.2, 0.75
_WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return _WORD.findall(text.lower())


class BM25Index:
    """Scores documents by Okapi BM25 with the inverse document frequency of Lucene, which is never negative.

    A word that occurs f times in a document of l words, and in n of N documents, adds
    ln(1 + (N - n + 1/2) / (n + 1/2)) f (K1 + 1) / (f + K1 (1 - B + B l / mean l)).
    """

    def __init__(self, texts: Sequence[str]):
        """Indexes texts; their places in the sequence are their numbers."""
        self._postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        lengths = []
        for number, text in enumerate(texts):
            counts = Counter(words_of(text))
            lengths.append(counts.total())
            for word, count in counts.items():
                self._postings[word].append((number, count))
        mean = (sum(lengths) / len(lengths) if lengths else 0.0) or 1.0
        self._norms = [K1 * (1 - B + B * length / mean) for length in lengths]

    def scores(self, query: str) -> dict[int, float]:
        """Scores of the documents that hold a word of a query; a word that the query repeats counts as often."""
        scores: dict[int, float] = defaultdict(float)
        for word, repeats in Counter(words_of(query)).items():
            postings = self._postings.get(word, ())
            rarity = math.log(1 + (len(self._norms) - len(postings) + 0.5) / (len(postings) + 0.5))
            for number, count in postings:
                scores[number] += repeats * rarity * count * (K1 + 1) / (count + self._norms[number])
        return dict(scores)

    def best(self, query: str, count: int) -> list[int]:
        """Numbers of the best documents, the best first; of equal ones the earlier first."""
        scores = self.scores(query)
        return heapq.nsmallest(count, scores, key=lambda number: (-scores[number], number))
