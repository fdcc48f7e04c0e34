"""The rule of what is removed, on corpora that hypothesis makes, and what it must not depend on."""

from concurrent.futures import ThreadPoolExecutor
import gzip
import json
from pathlib import Path
import random
import tempfile

from hypothesis import given, settings, strategies
import pytest

from k2jax.data.duplicates import proposals
from k2jax.data.duplicates.part_files import PAIR
from k2jax.data.duplicates.removal import examples
from k2jax.data.duplicates.verification import EXACT
from tests.data.duplicates.made import changed, is_duplicate, jaccard, parts_of, plain_words, removed_from, vocabulary
from tests.refusal import refused

WORDS = vocabulary(1, 400)


def corpus(seed: int, count: int) -> list[str]:
    """Chains of changed documents, copies with other case and spaces, numbers, and oddities."""
    rng, texts = random.Random(seed), []
    while len(texts) < count:
        kind = rng.random()
        if texts and kind < 0.5 and len(words := rng.choice(texts).split()) > 30:
            texts.append(" ".join(changed(words, rng, rng.uniform(0.65, 1), WORDS)))
        elif texts and kind < 0.6:
            texts.append("  ".join(word.title() + "!" for word in rng.choice(texts).split()))
        elif kind < 0.7:
            texts.append(rng.choice(["", "!", "word", "Word", "two words", "a b c d e", "\u4f60\u597d", "?"]))
        else:
            words = rng.choices(WORDS, k=rng.choice([6, 40, 90]))
            texts.append(" ".join([*words, *(str(rng.randrange(99)) for _ in range(rng.randrange(3)))]))
    return texts


def proposed(report) -> set[tuple[int, int]]:
    import numpy as np

    files = [*report.folder.glob("pairs-of-*.npy"), *report.folder.glob("round-*/following-*.npy")]
    return {tuple(pair) for file in files for pair in np.load(file).astype(PAIR).tolist()}


def order(text: str, position: int) -> tuple[int, int]:
    return -len(plain_words(text)), position


@settings(max_examples=8, deadline=None)
@given(strategies.integers(0, 10**6), strategies.lists(strategies.integers(0, 12), max_size=4))
def test_a_document_is_removed_for_a_verified_duplicate_that_is_kept_and_for_nothing_else(seed, sizes):
    texts = corpus(seed, 40)
    with tempfile.TemporaryDirectory() as folder:
        removed, report = removed_from(texts, Path(folder), sizes)
        pairs = proposed(report)
    for number, (keeper, score, kind) in removed.items():
        assert keeper not in removed
        assert order(texts[keeper], keeper) < order(texts[number], number)
        if kind == EXACT:
            assert plain_words(texts[number]) == plain_words(texts[keeper])
        else:
            assert is_duplicate(texts[number], texts[keeper])
            assert score >= 0.8
    for late, early in pairs:
        if late not in removed and early not in removed:
            assert not is_duplicate(texts[late], texts[early])
    report_counts = sum(report.removed.values()), report.kept
    assert report_counts == (len(removed), len(texts) - len(removed))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    texts = corpus(5, 150)
    return texts, removed_from(texts, tmp_path_factory.mktemp("whole"))[0]


@pytest.mark.parametrize("sizes", [[1, 0, 70], [30] * 5])
def test_parts_do_not_matter(whole, sizes, tmp_path):
    texts, removed = whole
    assert removed_from(texts, tmp_path, sizes)[0] == removed


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_workers_do_not_matter_to_any_byte(whole, tmp_path):
    texts, removed = whole
    with ThreadPoolExecutor(4) as pool:
        assert removed_from(texts, tmp_path / "four", [40, 40], pool.map)[0] == removed
    shuffled = lambda function, items: map(dict(zip_last_first(function, items)).get, items)  # noqa: E731
    assert removed_from(texts, tmp_path / "one", [40, 40], shuffled)[0] == removed
    assert files_of(tmp_path / "four") == files_of(tmp_path / "one")


def zip_last_first(function, items):
    return [(item, function(item)) for item in reversed(list(items))]


def test_ranges_of_keys_and_runs_do_not_matter(whole, tmp_path, monkeypatch):
    """With blocks, ranges and portions of a few documents each, as a large corpus has many of them."""
    texts, removed = whole
    monkeypatch.setattr("k2jax.data.duplicates.signatures.BLOCK", 16)
    monkeypatch.setattr("k2jax.data.duplicates.words.WINDOW", 2000)
    monkeypatch.setattr("k2jax.data.duplicates.proposals.RANGE", 20)
    monkeypatch.setattr("k2jax.data.duplicates.proposals._TOGETHER", 7)
    monkeypatch.setattr("k2jax.data.duplicates.verification._TOGETHER", 300)
    monkeypatch.setattr("k2jax.data.duplicates.removal._COLLECTED", 50)
    monkeypatch.setattr("k2jax.data.duplicates.keeping._RUN", 5)
    monkeypatch.setattr("k2jax.data.duplicates.keeping._AT_ONCE", 3)
    assert removed_from(texts, tmp_path, [40, 40])[0] == removed
    assert len(list((tmp_path / "work").glob("*/pairs-of-*.npy"))) == 3


def test_removal_is_not_transitive(tmp_path):
    """A is like B, B like C, A not like C: B goes for A, and C stays."""
    words = random.Random(2).choices(WORDS, k=200)
    chain = [words]
    for begin in (10, 60):
        chain.append(list(chain[-1]))
        chain[-1][begin : begin + 14] = random.Random(begin).choices(WORDS, k=14)
    texts = [" ".join(each) for each in chain]
    assert jaccard(texts[0], texts[1]) > 0.8 < jaccard(texts[1], texts[2]) and jaccard(texts[0], texts[2]) < 0.8
    removed, _ = removed_from(texts, tmp_path)
    assert {number: keeper for number, (keeper, _, _) in removed.items()} == {1: 0}


def test_a_document_like_a_removed_one_is_compared_with_its_keeper(tmp_path, monkeypatch):
    """As in a large bucket, where no band has to propose the third document with the first."""
    words = random.Random(2).choices(WORDS, k=200)
    texts = [" ".join([*words[:end], *["other"] * (end < 200)]) for end in (200, 198, 196)]
    assert {keeper for keeper, _, _ in removed_from(texts, tmp_path / "all")[0].values()} == {0}
    original = proposals._unique
    monkeypatch.setattr(
        proposals, "_unique", lambda portions: (pairs := original(portions))[pairs["late"] - pairs["early"] == 1]
    )
    removed, report = removed_from(texts, tmp_path / "two")
    assert report.proposed == 2
    assert {number: keeper for number, (keeper, _, _) in removed.items()} == {1: 0, 2: 0}


def test_all_equal_documents_leave_one(tmp_path):
    removed, report = removed_from(["the same words again and again"] * 5000, tmp_path)
    assert (len(removed), report.proposed, report.removed["exact"]) == (4999, 0, 4999)
    assert {keeper for keeper, _, _ in removed.values()} == {0}


def test_documents_without_words_are_duplicates_of_their_copies_alone(tmp_path):
    removed, _ = removed_from(["", "!!", "", "??", "!!"], tmp_path)
    assert {number: keeper for number, (keeper, _, _) in removed.items()} == {2: 0, 4: 1}


def test_a_document_of_more_than_a_million_words_is_compared_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("k2jax.data.duplicates.signatures.MOST_WORDS", 50)
    monkeypatch.setattr("k2jax.data.duplicates.words.WINDOW", 10)  # as then such a document is alone in its batch
    words = random.Random(2).choices(WORDS, k=60)
    texts = [" ".join(words), " ".join(words[:-1]), " ".join(words).upper(), " ".join(words[:40]), " ".join(words[:39])]
    removed, _ = removed_from(texts, tmp_path)
    assert {number: keeper for number, (keeper, _, _) in removed.items()} == {2: 0, 4: 3}


def test_copies_of_a_removed_document_name_the_kept_one(tmp_path):
    words = random.Random(2).choices(WORDS, k=100)
    texts = [" ".join(words[:-1]), " ".join(words), " ".join(words[:-1]) + "."]
    removed, report = removed_from(texts, tmp_path)
    assert {number: keeper for number, (keeper, _, _) in removed.items()} == {0: 1, 2: 1}
    assert report.copied == 1


def test_attributes_are_in_dolmas_layout(whole, tmp_path):
    texts, removed = whole
    _, report = removed_from(texts, tmp_path, [100])
    lines = [
        json.loads(line)
        for name in ("p0", "p1")
        for line in gzip.decompress((tmp_path / f"attributes/duplicates/{name}.jsonl.gz").read_bytes()).splitlines()
    ]
    assert [line["id"] for line in lines] == [str(number) for number in range(len(texts))]
    for number, line in enumerate(lines):
        if number not in removed:
            assert line == {"id": str(number), "attributes": {}}
            continue
        keeper, score, _ = removed[number]
        [(name, spans)] = line["attributes"].items()
        assert name in ("duplicates__exact", "duplicates__near", "duplicates__contained")
        assert spans == [[0, len(texts[number]), pytest.approx(score, abs=1e-6)]]
        file, row = (0, keeper) if keeper < 100 else (1, keeper - 100)
        assert line["keeper"] == {"file": f"p{file}.jsonl", "row": row, "id": str(keeper)}
    parts = parts_of(texts, [100])
    assert report.indices(0) + [100 + index for index in report.indices(1)] == sorted(removed)
    shown = list(examples(report, parts, 3))
    assert len(shown) == 3 and all(is_duplicate(*(text for _, text in each["texts"])) for each in shown)


def test_parts_of_one_name_are_refused(tmp_path):
    with refused("two files have the name p0.jsonl"):
        from k2jax.data.duplicates.removal import remove_duplicates
        from k2jax.data.duplicates.settings import DuplicateSettings

        parts = parts_of(["a"]) * 2
        remove_duplicates(parts, tmp_path, DuplicateSettings(), attributes=tmp_path)
