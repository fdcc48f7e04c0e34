"""Near duplicates against documents that only look alike, beside what MinHash alone would remove."""

import pytest

from k2jax.data.duplicates.settings import DuplicateSettings
from tests.data.duplicates.made import removed_from
from tests.data.duplicates.traps import FAMILIES, lsh_alone, precision_and_recall, trap


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


def test_a_template_with_thousands_of_documents_hides_no_duplicates(tmp_path):
    """All fall into the same buckets, in which a document is compared with five others."""
    texts, groups = trap("conversations", 700)
    removed, report = removed_from(texts, tmp_path)
    pairs = {number: [keeper] for number, (keeper, _, _) in removed.items()}
    precision, recall = precision_and_recall(pairs, groups)
    assert precision >= 0.99
    assert recall >= 0.9
    assert report.proposed < 60 * len(texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_twenty_thousand_documents_that_look_alike(name, tmp_path):
    (precision, recall), _ = rates(name, 20_000, tmp_path)
    assert precision >= 0.99
    assert recall >= 0.9
