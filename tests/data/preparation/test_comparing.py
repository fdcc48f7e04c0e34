"""Near duplicates and evaluation items are dropped from sources by config, over all of them."""

import json

import pytest

from k2jax.config.schema import StepsConfig
from k2jax.data.build_shards import prepare_shards
from k2jax.data.preparation import cutting
from k2jax.data.preparation.pools import InProcess
from k2jax.text import byte_tokenizer
from tests.data.corpora import data_config, jsonl_file, stored
from tests.refusal import refused

WORDS = [f"word{number}" for number in range(400)]


def text(seed):
    return " ".join(WORDS[(seed * 37 + place * (seed + 3)) % 400] for place in range(120))


def texts_of(shards):
    return sorted([*stored(shards.train), *stored(shards.held_out)])


@pytest.mark.parametrize("task_bytes", [3000, 1 << 22])
def test_near_duplicates_of_all_sources_and_evaluation_items_are_dropped(task_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(cutting, "TASK_BYTES", task_bytes)
    question = "Which of the seven bridges of the old town was crossed by the king in the year of the flood?"
    items = tmp_path / "items.jsonl"
    items.write_text(json.dumps({"question": question, "answer": "the third"}) + "\n")
    near = [text(seed) + " and more" for seed in range(5)]  # longer: it is kept, and the other is not
    a = [text(seed) for seed in range(20)]
    b = [*near, *(text(seed) for seed in range(20, 30)), text(50) + question + text(51), text(60), text(60)]
    sources = {"a": jsonl_file(tmp_path / "a.jsonl", a), "b": jsonl_file(tmp_path / "b.jsonl", b)}
    steps = StepsConfig(exact_duplicates=True, near_duplicates=0.8, decontaminate=(str(items),))
    config = data_config(tmp_path / "cache", sources, steps=steps)
    first, second = (prepare_shards(name, config, byte_tokenizer(), pool=InProcess()) for name in "ab")
    assert texts_of(first) == sorted(a[5:])
    assert texts_of(second) == sorted(set(b) - {b[15]})
    assert first.manifest["steps"]["dropped"] == {"near_duplicate": 5}
    assert second.manifest["steps"]["dropped"] == {"exact_duplicate": 1, "contaminated": 1}
    assert first.manifest["steps"]["examples"]["near_duplicate"][0] == [f"{tmp_path}/a.jsonl:1", a[0][:160]]
    with refused("the threshold of near duplicates is 0.2"):
        wrong = data_config(tmp_path / "cache", sources, steps=StepsConfig(near_duplicates=0.2))
        prepare_shards("a", wrong, byte_tokenizer(), pool=InProcess())
    items.write_text(json.dumps({"question": text(60), "answer": ""}) + "\n")
    second = prepare_shards("b", config, byte_tokenizer(), pool=InProcess())
    assert second.manifest["steps"]["dropped"] == {"exact_duplicate": 1, "contaminated": 1}
    assert question in " ".join(texts_of(second)), "other items, other shards"
