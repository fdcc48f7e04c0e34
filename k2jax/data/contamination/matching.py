"""Finds evaluation items in documents: where enough of a question's runs of words stand together.

A question is found where the runs that it shares with a stretch of a document of about its own length have at least
``overlap`` of its weight; or ``with_answer`` of it, if four of five words of the answer that are not in the question
stand within ``NEAR`` words of there. A question of fewer than ``SHORT`` words with an answer needs that answer always.

What that bounds: of a question of w words, w - 4 runs are compared. A replaced, added or left out word changes at most
five of them, two neighbours in exchange two. With ``overlap`` 0.8, runs of a fifth of the weight may be changed.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
from typing import NamedTuple

import numpy as np

from k2jax.data.contamination.gram_index import GRAM, GramIndex, bags
from k2jax.data.duplicates.words import HashedTexts
from k2jax.errors import UserError

NEAR, SHORT = 50, 13
"""Words between question and answer, and words below which a question alone says too little."""
_ANSWER = 0.8
_SLACK = 20  # words of a stretch beyond twice the question's


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContaminationSettings:
    """What counts as an evaluation item in a document.

    Attributes:
        overlap: least share of a question's weight that is in the document.
        with_answer: least share where its answer is near.
    """

    overlap: float = 0.8
    with_answer: float = 0.5

    def __post_init__(self):
        if not 0 < self.with_answer <= self.overlap <= 1:
            raise UserError(
                f"overlap is {self.overlap} and with_answer {self.with_answer}: 0 < with_answer <= overlap <= 1"
            )


class Match(NamedTuple):
    """An item in a document.

    Attributes:
        document: number of the document among those that were looked at.
        item: number of the item.
        score: share of the question's weight.
        answered: whether the answer is near.
        begin: first word of the stretch, within the document.
        end: the word behind it.
    """

    document: int
    item: int
    score: float
    answered: bool
    begin: int
    end: int


def matches(texts: HashedTexts, index: GramIndex, settings: ContaminationSettings) -> Iterator[Match]:
    """The items that are in documents, by document and item.

    Args:
        texts: the documents.
        index: of the items.
        settings: what counts.
    """
    grams = bags(texts.words)
    maybe = index.maybe[(grams & np.uint64(len(index.maybe) - 1)).astype(np.int64)]
    places = np.flatnonzero(maybe)
    first, last = (np.searchsorted(index.sampled, grams[places], side) for side in ("left", "right"))
    hits: dict[tuple[int, int], list[int]] = {}
    documents = np.searchsorted(texts.ends, places, "right")
    for place, document, begin, end in zip(*(each.tolist() for each in (places, documents, first, last)), strict=True):
        for item in index.sampled_items[begin:end].tolist():
            hits.setdefault((document, item), []).append(place)
    for (document, item), at in sorted(hits.items()):
        bounds = int(texts.ends[document - 1]) if document else 0, int(texts.ends[document])
        best = max(_stretches(at, item, grams, bounds, index), default=(0.0, 0, 0))
        if found := _judged(best, item, texts.words, bounds, (index, settings)):
            yield Match(document, item, best[0], found > 1, best[1] - bounds[0], best[2] - bounds[0])


def _stretches(
    places: list[int], item: int, grams: np.ndarray, bounds: tuple[int, int], index: GramIndex
) -> Iterator[tuple[float, int, int]]:
    """For the surroundings of places of one item: the largest share of its weight, and the stretch that has it."""
    of_item, weights, _ = index.item(item)
    length = 2 * int(index.lengths[item]) + _SLACK
    seen = -1
    for place in places:
        if place < seen:
            continue
        begin, seen = max(bounds[0], place - length), min(bounds[1] - GRAM + 1, place + length)
        around = grams[begin:seen]
        rows = np.minimum(np.searchsorted(of_item, around), len(of_item) - 1)
        shared = np.flatnonzero(of_item[rows] == around)
        yield _heaviest((shared + begin).tolist(), rows[shared].tolist(), weights, length)


def _heaviest(places: list[int], rows: list[int], weights: np.ndarray, length: int) -> tuple[float, int, int]:
    """The stretch of at most so many words whose different runs weigh most, as a share of all."""
    counts: dict[int, int] = {}
    weight, best, first = 0.0, (0.0, 0, 0), 0
    for place, row in zip(places, rows, strict=True):
        counts[row] = counts.get(row, 0) + 1
        weight += weights[row] if counts[row] == 1 else 0.0
        while place + GRAM - places[first] > length:
            counts[rows[first]] -= 1
            weight -= weights[rows[first]] if not counts[rows[first]] else 0.0
            first += 1
        if weight > best[0]:
            best = (float(weight), places[first], place + GRAM)
    return min(1.0, best[0] / float(weights.sum())), best[1], best[2]


def _judged(
    best: tuple[float, int, int],
    item: int,
    words: np.ndarray,
    bounds: tuple[int, int],
    by: tuple[GramIndex, ContaminationSettings],
) -> int:
    """0 for no match, 1 for one by its question, 2 for one whose answer is near too."""
    (score, begin, end), (index, settings) = best, by
    if score < settings.with_answer:
        return 0
    answer = index.item(item)[2]
    around = words[max(bounds[0], begin - NEAR) : min(bounds[1], end + NEAR)]
    if len(answer) and np.isin(answer, around).mean() >= _ANSWER:
        return 2
    alone = score >= settings.overlap and not (len(answer) and index.lengths[item] < SHORT)
    return int(alone)
