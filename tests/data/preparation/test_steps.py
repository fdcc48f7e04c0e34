"""Steps between reading and tokenising: what is normalised, what is dropped and why, and what is said of it."""

import dataclasses
import gzip
import json

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.config.schema import SourceConfig, StepsConfig
from k2jax.data.build_shards import prepare_shards
from k2jax.data.kept_corpora import kept_corpora
from k2jax.data.preparation import cutting, exact_duplicates
from k2jax.data.preparation.exact_duplicates import copies_of, write_copies
from k2jax.data.preparation.normalising import normalised
from k2jax.data.preparation.pools import InProcess
from k2jax.data.preparation.quality_filters import FILTERS, MeasuredText
from k2jax.data.training_data import build_sources
from k2jax.text import byte_tokenizer
from tests.data.corpora import data_config, jsonl_file, stored
from tests.data.preparation import odd_corpus
from tests.refusal import refused

ENGLISH = (
    "The river rises in the hills to the north, and it has been known to flood with the first rain of the year. "
    "People who live beside it have built their houses on stilts. In the dry months cattle graze on its bed. "
    "Every spring a fair is held at the bridge! Who would not want to be there? It lasts for three days, of which "
    "the last is that of the horses."
)


def value(name, text):
    return FILTERS[name].measure(MeasuredText(text))


def passes(name, text):
    return FILTERS[name].passes(value(name, text))


@pytest.mark.parametrize(
    ("name", "bad", "measured"),
    [
        ("gopher_words", "word " * 49, 49),
        ("gopher_words", "word " * 100_001, 100_001),
        ("gopher_mean_word_length", "ab " * 60, 2),
        ("gopher_symbols", "#a b c d e f g h i", 1 / 9),
        ("gopher_symbols", "a… b... c d", 0.5),
        ("gopher_bullets", "- a\n* b\n• c", 1),
        ("gopher_ellipsis", "a...\nb…\nc", 2 / 3),
        ("gopher_alphabetic", "1 2 3 four", 0.25),
        ("gopher_stop_words", "The cat sat", 1),
        ("gopher_repeated_lines", "a\na\nb\nb", 0.5 / 0.2),
        ("gopher_repeated_paragraphs", "one\n\none\n\ntwo", (3 / 9) / 0.2),
        ("gopher_common_ngrams", "to be or to be", 8 / 10 / 0.2),
        ("gopher_repeated_ngrams", "a b c d e f a b c d e", 5 / 11 / 0.15),
        ("c4_sentences", "One. Two. Three. Four", 3),
        ("c4_curly_brackets", "function() {", 1),
        ("c4_lorem_ipsum", "Lorem ipsum dolor", 1),
        ("fineweb_line_ends", "no end\n" * 9 + "an end.", 0.1),
        ("fineweb_short_lines", "short\nalso\n" + "long " * 10, 2 / 3),
        ("fineweb_repeated_lines", "same\nsame\nother", 4 / 13 / 0.1),
        ("fineweb_new_lines", "a\nb\nc", 2 / 3),
    ],
)
def test_each_rule_measures_what_its_report_says(name, bad, measured):
    assert value(name, bad) == pytest.approx(measured)
    assert passes(name, bad) == (name == "fineweb_short_lines"), "2/3 is within 0.67"
    assert passes(name, ENGLISH), value(name, ENGLISH)
    assert isinstance(passes(name, ""), bool), "no rule divides by nothing"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_repeated_ngrams_are_those_of_a_count_of_all_places(words):
    """A word counts once, if some n-gram over it occurred before."""
    expected = 0
    for size, most in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.1)):
        covered = set()
        for start in range(len(words) - size + 1):
            if any(words[before : before + size] == words[start : start + size] for before in range(start)):
                covered |= set(range(start, start + size))
        expected = max(expected, len(covered) / max(len(words), 1) / most)
    assert value("gopher_repeated_ngrams", " ".join(words)) == pytest.approx(expected)


def test_characters_are_normalised():
    text = "\ufeffa\r\nb\rc\u2028d\te\x00f e\u0301 \ufb01"
    assert normalised(text, ()) == text
    assert normalised(text, ("line_ends",)) == "\ufeffa\nb\nc\nd\te\x00f e\u0301 \ufb01"
    assert normalised(text, ("control", "nfc", "line_ends")) == "a\nb\nc\nd\tef \xe9 \ufb01"
    assert normalised(text, ("nfkc",)).endswith("\xe9 fi")


def built(tmp_path, sources, names, cache="cache", pool=None, **steps):
    config = data_config(tmp_path / cache, sources, steps=StepsConfig(**steps))
    return [prepare_shards(name, config, byte_tokenizer(), pool=pool or InProcess()) for name in names]


def texts_of(shards):
    return sorted([*stored(shards.train), *stored(shards.held_out)])


@pytest.mark.parametrize("task_bytes", [100, 1 << 22])
def test_copies_are_dropped_over_all_sources_in_the_order_of_their_names(task_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(cutting, "TASK_BYTES", task_bytes)
    monkeypatch.setattr(exact_duplicates, "SORTED", 7)
    a = [f"text {i % 9}" for i in range(20)]
    b = [f"text {i}\r" for i in range(5, 25)] + ["", " \n"]
    sources = {"a": jsonl_file(tmp_path / "a.jsonl", a), "b": jsonl_file(tmp_path / "b.jsonl", b)}
    steps = {"normalise": ("line_ends",), "exact_duplicates": True}
    first, second = built(tmp_path, sources, "ab", **steps)
    assert texts_of(first) == [f"text {i}" for i in range(9)]
    assert texts_of(second) == sorted(f"text {i}\n" for i in range(5, 25)), "after normalisation they differ"
    assert first.manifest["steps"]["dropped"] == {"exact_duplicate": 11}
    assert first.manifest["steps"]["examples"]["exact_duplicate"][0][1] == "text 0"
    assert second.manifest["steps"] == {
        "read": 21, "kept": 20, "dropped": {"empty": 1}, "examples": {"empty": [[str(tmp_path / "b.jsonl:22"), " \n"]]},
    } or task_bytes == 100  # fmt: skip
    sources["b"] = jsonl_file(tmp_path / "b.jsonl", [text.strip() for text in b])
    [second] = built(tmp_path, sources, "b", **steps)
    assert texts_of(second) == sorted(f"text {i}" for i in range(9, 25))
    sources["a"] = jsonl_file(tmp_path / "a.jsonl", a[:8])
    [second] = built(tmp_path, sources, "b", **steps)
    assert texts_of(second) == sorted(f"text {i}" for i in range(8, 25)), "what came before has changed"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=6), st.integers(1, 40))
def test_copies_are_those_of_a_set_of_everything(tmp_path_factory, arrays, size):
    folder = tmp_path_factory.mktemp("copies")
    rng = np.random.default_rng(0)
    known = rng.integers(0, 256, (31, 16), np.uint8)
    known[1:5, :8] = known[0, :8]  # equal first halves
    seen, expected = set(), []
    for array in arrays:
        expected.append([i for i, each in enumerate(array) if each in seen or each in array[:i]])
        seen |= set(array)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_duplicates, "SORTED", size)
        count = write_copies((known[array] for array in arrays), folder)
    found = [each.tolist() for each in copies_of(folder, map(len, arrays))]
    assert found == expected and count == sum(map(len, expected))


def test_filters_and_languages_drop_with_counts_examples_and_attributes(tmp_path):
    german = "Der Fluss entspringt in den Bergen im Norden, und im Frühjahr tritt er oft über die Ufer. " * 3
    texts = [ENGLISH, german, ENGLISH[:60], "#" * 40 + ENGLISH, "{" + ENGLISH] + [f"{ENGLISH} {i}." for i in range(12)]
    sources = {"s": jsonl_file(tmp_path / "s.jsonl", texts)}
    filters = ("gopher_words", "gopher_symbols", "c4_curly_brackets")
    [shards] = built(tmp_path, sources, "s", filters=filters, languages=("en",))
    steps = shards.manifest["steps"]
    assert steps["read"] == 17 and steps["kept"] == 13
    assert steps["dropped"] == {"language": 1, "gopher_words": 1, "gopher_symbols": 1, "c4_curly_brackets": 1}
    assert steps["examples"]["language"] == [[f"{tmp_path}/s.jsonl:2", german[:160]]]
    assert texts_of(shards) == sorted([ENGLISH, *texts[5:]])
    [attributes] = (tmp_path / "cache/decisions").rglob("*.jsonl.gz")
    lines = [json.loads(line) for line in gzip.decompress(attributes.read_bytes()).splitlines()]
    assert len(lines) == 17 and lines[2]["attributes"]["quality__gopher_words"] == [[0, 60, 14.0]]
    assert lines[1]["attributes"]["language__de"] == [[0, len(german), 1.0]]
    [corpus] = kept_corpora(str(tmp_path / "cache"))[0]
    facts = dict(corpus.facts())
    assert facts["dropped: language"] == "1 (5.9%)" and "Der Fluss" in facts["dropped: language, 1"]


def test_steps_are_the_same_in_any_tasks_and_a_limit_counts_what_is_kept(tmp_path, monkeypatch):
    folder = tmp_path / "corpus"
    sources = odd_corpus.sources(folder)
    steps = StepsConfig(normalise=("nfkc", "line_ends"), filters=("gopher_repeated_lines",), exact_duplicates=True)
    found = set()
    for task_bytes in (3000, 1 << 22):
        monkeypatch.setattr(cutting, "TASK_BYTES", task_bytes)
        for name in ("jsonl", "limited", "parquet"):
            cache = tmp_path / f"cache{task_bytes}{name}"
            config = odd_corpus.config(cache, {name: sources[name]}, steps=steps)
            manifest = prepare_shards(name, config, byte_tokenizer(), pool=InProcess()).manifest
            if name == "limited":
                assert sum(split["documents"] for split in manifest["splits"].values()) == 150
            else:
                assert manifest["steps"]["dropped"] or name == "parquet"
                found.add(json.dumps(manifest["steps"]["dropped"]))
            found.add(json.dumps(manifest["files"]))
    assert len(found) == 5


def test_steps_without_anything_to_work_on_are_refused(tmp_path):
    chat = {"s": SourceConfig(kind="chat", path=str(tmp_path))}
    steps = StepsConfig(languages=("en",))
    with refused("config.data.steps are of documents of text, and no source of config.data.sources has any"):
        build_sources(data_config(tmp_path, chat, steps=steps), tokenizer=byte_tokenizer())
    streamed = {"s": SourceConfig(kind="huggingface", path="x/y")}
    with refused("config.data.sources.s is streamed, and config.data.steps read files"):
        build_sources(data_config(tmp_path, streamed, steps=steps), tokenizer=byte_tokenizer())
    texts = {"s": jsonl_file(tmp_path / "a.jsonl", ["a", "b"])}
    config = data_config(tmp_path, texts, steps=dataclasses.replace(steps, languages=("xx",)))
    with refused("config.data.steps.languages has 'xx'"):
        build_sources(config, tokenizer=byte_tokenizer())
    config = data_config(tmp_path, texts, steps=StepsConfig(filters=("gopher_word",)))
    with refused("config.data.steps.filters has 'gopher_word'; did you mean 'gopher_words'"):
        build_sources(config, tokenizer=byte_tokenizer())
    with refused("source 's': config.data.steps keep none of 2 documents: {'gopher_words': 2}"):
        built(tmp_path, texts, "s", filters=("gopher_words",))
