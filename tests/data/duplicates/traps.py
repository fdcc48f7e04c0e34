"""Documents that only look alike: templated conversations, generated code, licences, books with one front matter.

Each has a group; documents of one group are duplicates, planted by a changed word or two, and all others are not.
"""

from collections import Counter
from collections.abc import Iterator
import random

import numpy as np

from k2jax.data.duplicates.settings import DuplicateSettings
from k2jax.data.duplicates.shingles import shingles
from k2jax.data.duplicates.signatures import band_keys, signatures
from k2jax.data.duplicates.words import hash_words
from tests.data.duplicates.made import vocabulary

WORDS = vocabulary(7)


def _text(rng: random.Random, count: int) -> list[str]:
    return rng.choices(WORDS, k=count)


def _numbers(rng: random.Random) -> str:
    return f"{rng.randrange(10**6)} {rng.randrange(10**6)} {rng.randrange(100)}.{rng.randrange(10, 100)}"


def conversation(rng: random.Random, template: list[str]) -> str:
    """A call of a function and its answer, in which two places have other numbers: a similarity of about 0.87."""
    return " ".join([*template[:90], _numbers(rng), *template[90:180], _numbers(rng), *template[180:]])


def code(rng: random.Random, template: list[str]) -> str:
    """Accessors of fields: the same statements around other names."""
    names = _text(rng, 12)
    return "\n".join(f"def get_{n}(self):\n    if self.{n} is None: return None\n    return self.{n}\n" for n in names)


def licence(rng: random.Random, template: list[str]) -> str:
    """A source file: 200 words of licence above 60 of its own."""
    return " ".join([*template[:200], *_text(rng, 60)])


def book(rng: random.Random, template: list[str]) -> str:
    """The same front matter before another text."""
    return " ".join([*template, *_text(rng, 150)])


FAMILIES = {"conversations": conversation, "code": code, "licences": licence, "books": book}


def trap(name: str, count: int, seed: int = 0) -> tuple[list[str], list[int]]:
    """Texts and their groups; a sixth of the texts are planted duplicates of earlier ones."""
    rng = random.Random(f"{name} {seed}")
    template, texts, groups = _text(rng, 260), [], []
    while len(texts) < count:
        if texts and rng.random() < 1 / 6:
            of = rng.randrange(len(texts))
            words = texts[of].split(" ")
            words[rng.choice([n for n, word in enumerate(words) if word.isalpha()])] = rng.choice(WORDS)
            texts.append(" ".join(words))
            groups.append(groups[of])
        else:
            texts.append(FAMILIES[name](rng, template))
            groups.append(len(texts))
    return texts, groups


def lsh_alone(texts: list[str], settings: DuplicateSettings) -> Iterator[tuple[int, list[int]]]:
    """What MinHash with transitive closure removes: each removed number, with the earlier ones of its cluster."""
    hashed = [hash_words([text]) for text in texts]
    signed = np.concatenate([signatures(*shingles(each)) for each in hashed])
    root = list(range(len(texts)))

    def find(number: int) -> int:
        while root[number] != number:
            number = root[number]
        return number

    for band in range(settings.bands):
        first: dict[int, int] = {}
        for number, key in enumerate(band_keys(signed, band, settings.rows).tolist()):
            one, other = sorted((find(number), find(first.setdefault(key, number))))
            root[other] = one
    clusters: dict[int, list[int]] = {}
    for number in range(len(texts)):
        earlier = clusters.setdefault(find(number), [])
        if earlier:
            yield number, list(earlier)
        earlier.append(number)


def precision_and_recall(removed: dict[int, list[int]], groups: list[int]) -> tuple[float, float]:
    """Share of the removed that had a duplicate among the documents they were removed for, and of those to remove."""
    right = sum(any(groups[n] == groups[other] for other in others) for n, others in removed.items())
    doubled = sum(count - 1 for count in Counter(groups).values())
    return right / max(1, len(removed)), right / max(1, doubled)
