"""Runs of words of evaluation items, by which they are found in documents.

A run is five consecutive words as a bag: their order within it does not matter. Letters' case, punctuation and spaces
are no part of words. The weight of a run is ln((N + 1) / n) for n of N items that have it: what many items have says
little. Of each item the rarest ``SAMPLED`` runs are looked up in documents, and all of them where one is found.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
from pathlib import Path

import numpy as np

from k2jax.data.contamination.evaluation_items import EvaluationItem
from k2jax.data.duplicates.part_files import key_of
from k2jax.data.duplicates.shingles import distinct, mixed
from k2jax.data.duplicates.words import WINDOW, hash_words
from k2jax.errors import UserError
from k2jax.files.atomic import replacing

GRAM = 5
"""Words of a run."""
SAMPLED = 64
"""Most runs of an item that are looked up."""
FEWEST_WORDS, MOST_WORDS = 8, 5_000
"""Words of a question that can be found, and those of a long one that are looked at."""
VERSION = 1
"""Of the index; raised when the same items give another one."""


def bags(words: np.ndarray) -> np.ndarray:
    """Hashes of runs of words, one beginning at every word, uint64 ``[W - GRAM + 1]``."""
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(words, dtype=np.uint64)])
    return mixed([sums[GRAM:] - sums[:-GRAM]])


@dataclasses.dataclass(frozen=True, kw_only=True)
class GramIndex:
    """Evaluation items as sorted arrays.

    Attributes:
        sets: names of the sets.
        ids: ``SET/ID`` of each item.
        set_of: int64 ``[I]``, number of each item's set.
        lengths: int64 ``[I]``, words of each question.
        ends: int64 ``[I]``, where each item's runs end in ``grams``.
        grams: uint64, sorted runs of each item.
        weights: float64, weight of each run.
        sampled: uint64, sorted runs that are looked up.
        sampled_items: int64, the item of each of them.
        answer_ends: int64 ``[I]``, where each item's answer ends in ``answers``.
        answers: uint64, words of the answers that are not in their questions.
        too_short: number of items whose questions have fewer than ``FEWEST_WORDS`` words.
    """

    sets: np.ndarray
    ids: np.ndarray
    set_of: np.ndarray
    lengths: np.ndarray
    ends: np.ndarray
    grams: np.ndarray
    weights: np.ndarray
    sampled: np.ndarray
    sampled_items: np.ndarray
    answer_ends: np.ndarray
    answers: np.ndarray
    too_short: int

    def item(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs of an item, their weights, and the words of its answer."""
        begin = self.ends[number - 1] if number else 0
        of = slice(begin, self.ends[number])
        first = self.answer_ends[number - 1] if number else 0
        return self.grams[of], self.weights[of], self.answers[first : self.answer_ends[number]]

    @functools.cached_property
    def maybe(self) -> np.ndarray:
        """Which lowest bits of a run one of the sampled ones has; most runs of documents have others."""
        bits = max(16, len(self.sampled).bit_length() + 4)
        table = np.zeros(1 << bits, bool)
        table[(self.sampled & np.uint64(len(table) - 1)).astype(np.int64)] = True
        return table


def make_index(items: Sequence[EvaluationItem]) -> GramIndex:
    """Indexes the items of all sets.

    Raises:
        UserError: no question is long enough.
    """
    hashed = [_words(item.question) for item in items]
    usable = [number for number, words in enumerate(hashed) if len(words) >= FEWEST_WORDS]
    if not usable:
        raise UserError(f"no question has {FEWEST_WORDS} words, which it takes to find one in a document")
    items, words = [items[number] for number in usable], [hashed[number][:MOST_WORDS] for number in usable]
    grams = [distinct(bags(each)) for each in words]
    every, counts = np.unique(np.concatenate(grams), return_counts=True)
    weights = [np.log((len(items) + 1) / counts[np.searchsorted(every, each)]) for each in grams]
    rarest = [of[np.argsort(-weight, kind="stable")[:SAMPLED]] for of, weight in zip(grams, weights, strict=True)]
    sampled, owners = np.concatenate(rarest), np.repeat(np.arange(len(items)), list(map(len, rarest)))
    order = np.argsort(sampled, kind="stable")
    answers = [np.setdiff1d(_words(item.answer)[:MOST_WORDS], of) for item, of in zip(items, words, strict=True)]
    sets = sorted({item.set for item in items})
    return GramIndex(
        sets=np.array(sets),
        ids=np.array([f"{item.set}/{item.id}"[:200] for item in items]),
        set_of=np.array([sets.index(item.set) for item in items]),
        lengths=np.array(list(map(len, words))),
        ends=np.cumsum(list(map(len, grams))),
        grams=np.concatenate(grams),
        weights=np.concatenate(weights),
        sampled=sampled[order],
        sampled_items=owners[order],
        answer_ends=np.cumsum(list(map(len, answers))),
        answers=np.concatenate(answers),
        too_short=len(hashed) - len(items),
    )


def write_index(items: Sequence[EvaluationItem], folder: Path) -> Path:
    """Writes the index of items, unless it is there; returns its path, which names its content."""
    path = folder / f"index-{key_of('index', VERSION, [list(item) for item in items])}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        index = make_index(items)
        with replacing(path) as file:
            np.savez(file, **{field.name: getattr(index, field.name) for field in dataclasses.fields(index)})
    return path


@functools.lru_cache(1)
def read_index(path: Path) -> GramIndex:
    """Reads an index, which is kept between the tasks of a process."""
    with np.load(path) as arrays:
        fields = {name: arrays[name] for name in arrays.files}
    return GramIndex(**fields | {"too_short": int(fields["too_short"])})


def _words(text: str) -> np.ndarray:
    return hash_words([text[: 4 * WINDOW]]).words
