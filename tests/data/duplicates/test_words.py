"""Hashed words and shingles against words that regular expressions find."""

import itertools
import random
import re
import unicodedata

from hypothesis import given, settings, strategies
import numpy as np
import pytest

from k2jax.data.duplicates import words as of_words
from k2jax.data.duplicates.shingles import SHINGLE, distinct, shared, shingles
from k2jax.data.duplicates.words import batches, hash_words

KNOWN: dict[int, str] = {}
"""Words by their numbers, of all texts of these tests: one number has one word."""
NUMBERS: dict[str, int] = {}
"""Numbers of the same words: one word has one number."""
TEXTS = strategies.lists(
    strategies.text(strategies.sampled_from("aZ9_ ,.-\n\0\u00e9\u00df\u0130\u4f60\u3042"), max_size=40), min_size=1
)


def oracle(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKC", text).lower()
    return re.findall(
        r"[\u3040-\u30ff\u4e00-\u9fff]|[^\W\u3040-\u30ff\u4e00-\u9fff](?:[^\W\u3040-\u30ff\u4e00-\u9fff]|[\u0300-\u036f])*",
        plain,
    )


def numbers_of(texts: list[str]) -> list[list[int]]:
    hashed = hash_words(texts)
    return [hashed.words[begin:end].tolist() for begin, end in hashed.spans()]


def check(texts: list[str]) -> None:
    for text, numbers in zip(texts, numbers_of(texts), strict=True):
        words = oracle(text)
        assert len(numbers) == len(words)
        for number, word in zip(numbers, words, strict=True):
            assert KNOWN.setdefault(number, word) == word
            assert NUMBERS.setdefault(word, number) == number
        assert len(set(numbers)) == len(set(words))


@settings(max_examples=80, deadline=None)
@given(TEXTS)
def test_words_are_those_of_regular_expressions(texts):
    check(texts)


def test_words_of_every_length_have_their_own_numbers():
    rng = random.Random(0)
    words = ["".join(rng.choices("ab", k=length)) for length in [*range(1, 140), 1000, 70_000] for _ in range(4)]
    check([" ".join(words), *words])
    assert numbers_of(["x" * 64 + "a"]) != numbers_of(["x" * 64 + "b"])
    assert numbers_of(["x" * 63 + "a"]) != numbers_of(["x" * 63 + "b"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Hello,  World!", "hello world"),
        ("\uff28\uff45\uff4c\uff4c\uff4f", "hello"),
        ("caf\u00e9", "cafe\u0301"),
        ("\u201cquoted\u201d \u2014 text\u2026", "quoted text"),
        ("\u4f60\u597d", "\u4f60 \u597d"),
        ("\ufb01ne", "fine"),
    ],
)
def test_what_is_no_part_of_a_word_does_not_matter(one, other):
    assert numbers_of([one]) == numbers_of([other])


def test_signs_of_vowels_belong_to_words():
    assert len(numbers_of(["\u0915\u093f\u0924\u093e\u092c"])[0]) == 1  # Hindi for book
    assert numbers_of(["\u0915\u093f"]) != numbers_of(["\u0915\u0940"])


def test_a_long_text_is_hashed_in_windows(monkeypatch):
    text = " ".join("".join(random.Random(n).choices("abc", k=n % 30)) for n in range(900)) + " " + "y" * 3000
    whole = numbers_of([text])
    monkeypatch.setattr(of_words, "WINDOW", 100)
    assert numbers_of([text]) == whole


def test_batches_hold_every_document_in_order(monkeypatch):
    monkeypatch.setattr(of_words, "WINDOW", 50)
    documents = [(str(n), "x" * (n * 7 % 90)) for n in range(60)]
    found = list(batches(documents))
    assert list(itertools.chain.from_iterable(found)) == documents
    assert all(len(batch) == 1 or sum(len(text) + 1 for _, text in batch) <= 50 for batch in found)
    assert len(found) < 50 and list(batches([])) == []


def test_words_with_digits_are_marked():
    hashed = hash_words(["a1 b 22", "", "3 c", "d x9y"], digits=True)
    assert hashed.digits.tolist() == [True, False, True, True, False, False, True]


@settings(max_examples=40, deadline=None)
@given(strategies.lists(strategies.lists(strategies.sampled_from("abcd"), max_size=12), min_size=1, max_size=6))
def test_shingles_are_runs_of_words(texts):
    hashes, ends = shingles(hash_words([" ".join(words) for words in texts]))
    known: dict[tuple, int] = {}
    for words, begin, end in zip(texts, [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        runs = [tuple(words[at : at + SHINGLE]) for at in range(max(1, len(words) - SHINGLE + 1))]
        assert end - begin == len(runs)
        for run, number in zip(runs, hashes[begin:end].tolist(), strict=True):
            assert known.setdefault(run, number) == number
    assert len(set(known.values())) == len(known)


@settings(max_examples=40, deadline=None)
@given(*[strategies.lists(strategies.integers(0, 30))] * 2)
def test_sets_are_those_of_python(one, other):
    sets = [distinct(np.array(each, np.uint64)) for each in (one, other)]
    assert [each.tolist() for each in sets] == [sorted(set(each)) for each in (one, other)]
    assert shared(*sets) == len(set(one) & set(other))
