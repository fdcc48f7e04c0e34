"""Planted near duplicates are found at every threshold, and nothing else; the oracle is plain Python."""

import random

import datasketch
import numpy as np
import pytest

from k2jax.data.duplicates.settings import PERMUTATIONS, DuplicateSettings, proposed_share
from k2jax.data.duplicates.shingles import shingles
from k2jax.data.duplicates.signatures import signatures
from k2jax.data.duplicates.verification import CONTAINED, EXACT, NEAR
from k2jax.data.duplicates.words import hash_words
from tests.data.duplicates.made import changed, jaccard, removed_from, runs, vocabulary
from tests.refusal import refused

WORDS = vocabulary(0)


def pairs_around(threshold: float, count: int, seed: int) -> list[str]:
    """Documents, each before a changed one: similarities from a little below the threshold to a little above."""
    rng, texts = random.Random(seed), []
    for _ in range(count):
        words = rng.choices(WORDS, k=250)
        similarity = min(1.0, threshold + rng.uniform(-0.12, 0.08))
        texts += [" ".join(words), " ".join(changed(words, rng, similarity, WORDS))]
    return texts


def found(threshold: float, count: int, folder) -> tuple[float, float]:
    """Recall and precision of pairs; every score is the similarity that plain Python finds."""
    texts = pairs_around(threshold, count, seed=1)
    removed, _ = removed_from(texts, folder, threshold=threshold, contained=0)
    for number, (keeper, score, kind) in removed.items():
        assert keeper == number ^ 1
        assert score == pytest.approx(jaccard(texts[number], texts[keeper]), abs=1e-12)
        assert kind == (EXACT if texts[number] == texts[keeper] else NEAR)
    pairs = {number // 2 for number in removed}
    right = {pair for pair in range(count) if jaccard(*texts[2 * pair : 2 * pair + 2]) >= threshold}
    return len(pairs & right) / len(right), len(pairs & right) / len(pairs)


@pytest.mark.parametrize("threshold", [0.7, 0.8, 0.9, 0.95])
def test_planted_duplicates_are_found(threshold, tmp_path):
    recall, precision = found(threshold, 120, tmp_path)
    assert recall >= 0.95
    assert precision >= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.7, 0.8, 0.9, 0.95])
def test_many_planted_duplicates_are_found(threshold, tmp_path):
    recall, precision = found(threshold, 5000, tmp_path)
    print(f"threshold {threshold}: recall {recall:.4f}, precision {precision:.4f}")
    assert recall >= 0.95
    assert precision >= 0.99


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_bands_propose_what_lies_at_the_threshold(threshold):
    settings = DuplicateSettings(threshold=threshold)
    assert settings.rows * settings.bands <= PERMUTATIONS
    assert proposed_share(threshold, settings.rows) >= 0.98
    assert settings.rows == 32 or proposed_share(threshold, settings.rows + 1) < 0.98
    if threshold == 0.8:
        assert (settings.rows, settings.bands) == (7, 18)
        assert proposed_share(0.8, 7) == pytest.approx(1 - (1 - 0.8**7) ** 18)


def test_estimates_are_as_good_as_those_of_datasketch():
    rng, ours, theirs, true = random.Random(3), [], [], []
    for _ in range(60):
        words = rng.choices(WORDS, k=250)
        texts = [" ".join(words), " ".join(changed(words, rng, rng.uniform(0.5, 1), WORDS))]
        signed = signatures(*shingles(hash_words(texts)))
        oracle = [datasketch.MinHash(num_perm=PERMUTATIONS) for _ in texts]
        for minhash, text in zip(oracle, texts, strict=True):
            minhash.update_batch([" ".join(run).encode() for run in runs(text, 5)])
        ours.append((signed[0] == signed[1]).mean())
        theirs.append(oracle[0].jaccard(oracle[1]))
        true.append(jaccard(*texts))
    errors = [float(np.sqrt(np.mean((np.array(each) - true) ** 2))) for each in (ours, theirs)]
    assert errors[0] < 1.5 * errors[1]
    assert abs(np.mean(np.array(ours) - true)) < 0.02


def test_a_text_in_a_longer_one_is_contained(tmp_path):
    rng = random.Random(4)
    words = rng.choices(WORDS, k=300)
    texts = [" ".join(words[:225]), " ".join(words)]
    removed, _ = removed_from(texts, tmp_path, threshold=0.8)
    assert removed == {0: (1, 1.0, CONTAINED)}
    assert not removed_from(texts, tmp_path, threshold=0.8, contained=0)[0]


def test_other_numbers_make_another_document(tmp_path):
    words = random.Random(5).choices(WORDS, k=250)
    texts = [" ".join([*words, number]) for number in ("it costs 17 and 1999", "it costs 18 and 2001")]
    assert not removed_from(texts, tmp_path)[0]
    assert list(removed_from(texts, tmp_path, numbers=0)[0]) == [1]
    texts = [" ".join([*words, number]) for number in ("it costs 17", "it costs 17 or 23 or 41")]
    assert not removed_from(texts, tmp_path, contained=0)[0]
    assert removed_from(texts, tmp_path)[0][0][2] == CONTAINED


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"threshold": 0.3}, "0.5 to 1"), ({"numbers": 2.0}, "numbers .* is 2.0"), ({"contained": -1.0}, "contained")],
)
def test_settings_out_of_range_are_refused(settings, message):
    with refused(message):
        DuplicateSettings(**settings)
