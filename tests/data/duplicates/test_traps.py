"""Near duplicates against documents that only look alike, beside what MinHash alone would remove."""

import random

import pytest

from k2jax.data.duplicates.settings import DuplicateSettings
from tests.data.duplicates.made import removed_from
from tests.data.duplicates.traps import FAMILIES, WORDS, lsh_alone, precision_and_recall, trap


def rates(name: str, count: int, folder) -> tuple[tuple[float, float], tuple[float, float]]:
    texts, groups = trap(name, count)
    removed, _ = removed_from(texts, folder)
    ours = precision_and_recall({number: [keeper] for number, (keeper, _, _) in removed.items()}, groups)
    alone = precision_and_recall(dict(lsh_alone(texts, DuplicateSettings())), groups)
    print(f"{name}, {count} documents: precision {ours[0]:.3f}, recall {ours[1]:.3f}; MinHash alone {alone[0]:.3f}")
    return ours, alone


@pytest.mark.parametrize("name", FAMILIES)
def test_documents_that_look_alike_are_kept(name, tmp_path):
    (precision, recall), (alone, _) = rates(name, 300, tmp_path)
    assert precision >= 0.99
    assert recall >= 0.9
    assert alone <= precision


def test_minhash_alone_removes_conversations_of_one_template(tmp_path):
    _, (alone, _) = rates("conversations", 200, tmp_path)
    assert alone < 0.5


def test_in_one_bucket_duplicates_are_found_and_few_pairs_are_compared(tmp_path):
    """Long documents of one template: a signature shows nothing of the numbers in which they differ."""
    rng = random.Random(0)
    template, texts, groups = rng.choices(WORDS, k=1500), [], []
    for group in range(250):
        for _ in range(1 + (group % 5 == 0)):
            words = [*template, f"{group} {group * 7919 % 10_007}"]
            words[rng.randrange(1400)] = rng.choice(WORDS)
            texts.append(" ".join(words))
            groups.append(group)
    order = rng.sample(range(len(texts)), len(texts))
    texts, groups = [texts[n] for n in order], [groups[n] for n in order]
    removed, report = removed_from(texts, tmp_path)
    pairs = {number: [keeper] for number, (keeper, _, _) in removed.items()}
    precision, recall = precision_and_recall(pairs, groups)
    assert precision >= 0.99
    assert recall >= 0.95
    assert report.proposed < 40 * len(texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_twenty_thousand_documents_that_look_alike(name, tmp_path):
    (precision, recall), _ = rates(name, 20_000, tmp_path)
    assert precision >= 0.99
    assert recall >= 0.9
