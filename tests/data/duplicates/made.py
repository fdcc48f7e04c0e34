"""Documents for tests of duplicates, and an oracle in plain Python that shares no code with what it checks."""

from collections.abc import Iterator, Sequence
import dataclasses
import random
import re
import zlib

from k2jax.data.duplicates.removal import DuplicateReport, remove_duplicates
from k2jax.data.duplicates.settings import DuplicateSettings


@dataclasses.dataclass(frozen=True)
class ListPart:
    """A part in memory."""

    name: str
    documents: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        return f"{zlib.crc32(repr(self.documents).encode())}-{len(self.documents)}"

    def read(self) -> Iterator[tuple[str, str]]:
        return iter(self.documents)


def parts_of(texts: Sequence[str], sizes: Sequence[int] = ()) -> list[ListPart]:
    """Texts in parts of these sizes, the rest in a last one; a document's id is its number."""
    parts, at = [], 0
    for size in [*sizes, len(texts)]:
        documents = tuple((str(at + n), text) for n, text in enumerate(texts[at : at + size]))
        parts.append(ListPart(f"p{len(parts)}.jsonl", documents))
        at += len(documents)
    return parts


def removed_from(texts: Sequence[str], folder, sizes=(), run=map, **settings) -> tuple[dict, DuplicateReport]:
    """Removes duplicates; returns keeper, score and kind of each removed number, and the report."""
    parts = parts_of(texts, sizes)
    report = remove_duplicates(
        parts, folder / "work", DuplicateSettings(**settings), run, attributes=folder / "attributes"
    )
    rows = [row for part in range(len(parts)) for row in report.removals(part).tolist()]
    return {position: (keeper, score, kind) for position, keeper, score, kind in rows}, report


def vocabulary(seed: int, size: int = 5000) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 11))) for _ in range(size)]


def changed(words: list[str], rng: random.Random, similarity: float, words_of: list[str]) -> list[str]:
    """Words of which some are replaced, so that the Jaccard similarity of the shingles is about this one."""
    words, lost = list(words), (1 - similarity) / (1 + similarity) * (len(words) - 4)
    for place in rng.sample(range(4, len(words) - 4), round(lost / 5)):
        words[place] = rng.choice(words_of)
    return words


def plain_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def runs(text: str, size: int) -> set[tuple[str, ...]]:
    words = plain_words(text)
    return {tuple(words[at : at + size]) for at in range(max(1, len(words) - size + 1))}


def jaccard(one: str, other: str, size: int = 5) -> float:
    one, other = runs(one, size), runs(other, size)
    return len(one & other) / len(one | other)


def is_duplicate(one: str, other: str, threshold=0.8, contained=0.95, numbers=0.5) -> bool:
    """Whether two texts are duplicates by the rule that docs/duplicates.md states."""
    digits = [{word for word in plain_words(text) if re.search("[0-9]", word)} for text in (one, other)]
    common, either = len(digits[0] & digits[1]), len(digits[0] | digits[1])
    if jaccard(one, other) >= threshold and (not either or common / either >= numbers):
        return True
    grams = [runs(text, 3) for text in (one, other)]
    smaller, fewest = min(map(len, grams)), min(map(len, digits))
    share = len(grams[0] & grams[1]) / smaller
    return bool(contained) and share >= contained and (not fewest or common / fewest >= 2 * numbers / (1 + numbers))
