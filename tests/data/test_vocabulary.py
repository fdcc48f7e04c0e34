import pytest

from k2jax.config import replace_keys
from k2jax.config.schema import TokenizerConfig
from k2jax.data import vocabulary
from k2jax.data.build_shards import prepare_shards
from k2jax.data.vocabulary import prepare_tokenizer, training_sample
from k2jax.text import byte_tokenizer
from tests.data.corpora import data_config, stored, text_folder, words
from tests.refusal import refused


def config_of(tmp_path, corpora, train_bytes=10**6, **fields):
    sources = {name: text_folder(tmp_path / name, texts) for name, texts in corpora.items()}
    tokenizer = TokenizerConfig(kind="bpe", vocab=300, train_bytes=train_bytes)
    return data_config(tmp_path / "cache", sources, tokenizer=tokenizer, **fields)


@pytest.mark.parametrize("held_out", [0.0, 0.3, 0.99])
def test_the_tokenizer_learns_from_all_training_documents_and_no_others(tmp_path, held_out):
    config = config_of(tmp_path, {"a": words(30, seed=1), "b": words(5, seed=2)}, held_out=held_out)
    texts = [text for name in "ab" for text in stored(prepare_shards(name, config, byte_tokenizer()).train)]
    assert sorted(training_sample(config)) == sorted(texts)


def test_a_sample_takes_equal_shares_and_what_small_sources_leave(tmp_path):
    corpora = {"big": ["B" * 100 + str(i) for i in range(99)], "huge": ["H" * 5000 + str(i) for i in range(9)]}
    corpora["small"] = ["s" * 50 + str(i) for i in range(4)]
    sample = "".join(training_sample(config_of(tmp_path, corpora, train_bytes=3000, held_out=0.3)))
    counts = {letter: sample.count(letter) for letter in "BHs"}
    assert len(sample) == 3000
    assert 0 < counts["s"] <= 200
    assert abs(counts["B"] - counts["H"]) < 100


def test_a_sample_is_spread_over_the_source_and_reads_a_bounded_part(tmp_path, monkeypatch):
    read = []
    config = config_of(tmp_path, {"a": [f"{i:04d}" + "x" * 96 for i in range(400)]}, train_bytes=1000, held_out=0.1)
    find = vocabulary.documents
    monkeypatch.setattr(vocabulary, "documents", lambda *a: (read.append(1) or d for d in find(*a)))
    places = sorted(int(text[:4]) for text in training_sample(config) if len(text) > 3)
    assert len(read) == 161  # sixteen times train_bytes, of 400 documents
    assert len(places) == 10 and places[0] < 80 < places[-1]


def test_a_trained_tokenizer_is_cached_by_corpus_and_settings(tmp_path, monkeypatch):
    config = config_of(tmp_path, {"a": words(30)})
    first = prepare_tokenizer(config, log=(lines := []).append)
    assert "300" in lines[0] and first.vocab_size <= 300
    text = words(30)[3]
    assert first.decode(first.encode(text)) == text
    train, trained = vocabulary.train_bpe, []
    monkeypatch.setattr(vocabulary, "train_bpe", lambda *a: (trained.append(1), train(*a))[1])
    assert prepare_tokenizer(config).fingerprint == first.fingerprint
    assert prepare_tokenizer(config, builder=False, wait_seconds=0.1).fingerprint == first.fingerprint
    assert not trained
    smaller = replace_keys(config, {"tokenizer.vocab": 270})
    assert prepare_tokenizer(smaller).vocab_size <= 270
    (tmp_path / "a" / "0000.txt").write_text("changed")
    prepare_tokenizer(config)
    assert len(trained) == 2


def test_a_damaged_tokenizer_of_the_cache_is_named_with_the_folder_to_delete(tmp_path):
    config = config_of(tmp_path, {"a": words(30)})
    prepare_tokenizer(config)
    (folder,) = (tmp_path / "cache" / "tokenizers").iterdir()
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text().replace("a", "b", 1))
    with refused(f"delete the folder {folder} to have its tokenizer trained again: {folder}/tokenizer.json"):
        prepare_tokenizer(config)


def test_other_kinds(tmp_path):
    def config(**fields):
        return data_config(tmp_path, {}, tokenizer=TokenizerConfig(**fields))

    assert prepare_tokenizer(config(kind="bytes")).vocab_size == 258
    byte_tokenizer().save(tmp_path)
    assert prepare_tokenizer(config(kind="file", path=str(tmp_path))).fingerprint == byte_tokenizer().fingerprint
    with refused(r"set data\.tokenizer\.path"):
        prepare_tokenizer(config(kind="file"))
