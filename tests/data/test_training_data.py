import dataclasses
import hashlib
import json
import math
import os

import numpy as np
import pytest

from k2jax.config.schema import SourceConfig, TokenizerConfig
from k2jax.data import prepare_data
from tests.data.corpora import data_config, jsonl_file, text_folder, words
from tests.refusal import refused

RUN = {"batch_size": 4, "seed": 1, "steps": 20}


def two_sources(tmp_path, **fields):
    sources = {
        "files": text_folder(tmp_path / "files", [*words(40, seed=1), "[EOS] [BOS]" * 5]),
        "lines": jsonl_file(tmp_path / "lines.jsonl", words(30, seed=2)),
    }
    sources["lines"] = dataclasses.replace(sources["lines"], weight=3.0)
    return data_config(tmp_path / "cache", sources, **fields)


def test_all_that_training_reads(tmp_path):
    lines = []
    data = prepare_data(two_sources(tmp_path, tokenizer=TokenizerConfig(vocab=300)), **RUN, log=lines.append)
    assert set(data.manifests) == {"files", "lines"}
    assert any("training a byte-level BPE" in line for line in lines) and any("lines: " in line for line in lines)
    sources = [name for step in range(20) for name in data.loader.sources(step)]
    assert sources.count("lines") == 60
    for batch in data.loader.batches(18):
        assert batch.tokens.shape == (4, 16) and batch.tokens.dtype == np.int32
        assert (batch.tokens[batch.targets["weights"] > 0] != data.tokenizer.bos).all()
    split = [manifest["splits"]["held_out"] for manifest in data.manifests.values()]
    targets = sum(batch.targets["weights"].sum() for batch in data.held_out.batches(8))
    assert targets == data.held_out.targets == sum(s["tokens"] - s["documents"] for s in split)
    assert data.held_out.bytes == sum(s["bytes"] for s in split)
    bits = data.held_out.bits_per_byte(targets * math.log(2), targets)
    assert bits == pytest.approx(targets / data.held_out.bytes)


def test_the_fingerprint_is_of_contents_alone(tmp_path):
    config = two_sources(tmp_path)
    fingerprint = prepare_data(config, **RUN).fingerprint
    os.utime(tmp_path / "files" / "0001.txt", (1, 1))
    assert prepare_data(config, **RUN).fingerprint == fingerprint  # rebuilt
    moved = dataclasses.replace(two_sources(tmp_path / "elsewhere" / "files" / ".."), cache_dir=str(tmp_path / "new"))
    assert prepare_data(moved, **RUN).fingerprint == fingerprint
    assert prepare_data(config, **(RUN | {"seed": 2, "steps": 5})).fingerprint == fingerprint
    (tmp_path / "files" / "0001.txt").write_text("changed")
    assert prepare_data(config, **RUN).fingerprint != fingerprint


def test_the_fingerprint_of_a_corpus_stays_what_it_was(tmp_path):
    """Checkpoints hold it: of the tokenizer, and of the size and sha256 of every file of tokens and of indices."""
    data = prepare_data(two_sources(tmp_path), **RUN)
    contents = {}
    for folder in (tmp_path / "cache" / "shards").iterdir():
        files = [file for name in ("tokens-*.bin", "offsets.npy", "bytes.npy") for file in folder.glob(f"*/{name}")]
        assert len(files) == 6
        contents["files" if folder.name.startswith("text") else "lines"] = {
            file.relative_to(folder).as_posix(): {
                "bytes": file.stat().st_size,
                "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            }
            for file in files
        }
    text = json.dumps([data.tokenizer.fingerprint, 0, 1, contents], sort_keys=True)
    assert data.fingerprint == hashlib.sha256(text.encode()).hexdigest()


def test_processes_share_what_process_0_builds(tmp_path):
    config = two_sources(tmp_path)
    with refused("did not appear within"):
        prepare_data(config, **RUN, builder=False, wait_seconds=0.05)
    first = prepare_data(config, **RUN, local_rows=range(RUN["batch_size"] // 2))
    second = prepare_data(config, **RUN, local_rows=range(RUN["batch_size"] // 2, RUN["batch_size"]), builder=False)
    whole = prepare_data(config, **RUN).loader.batch(3)
    assert np.array_equal(whole.tokens, np.concatenate([p.loader.batch(3).tokens for p in (first, second)]))
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sources": {}}, "at least one source"),
        ({"sequence_length": 1}, "sequence_length must be at least 2"),
        *(({"held_out": share}, r"data\.held_out") for share in (1.0, -0.1, float("nan"))),
        ({"on_corrupt": "ignore"}, "on_corrupt is 'ignore'"),
        ({"tokenizer": TokenizerConfig(kind="words")}, r"tokenizer\.kind is 'words'; there are bpe, bytes, file"),
        ({"sources": {"a": SourceConfig(kind="csv")}}, "kind is 'csv'; there are .*stdlib, synthetic_images, text"),
        ({"sources": {"a": SourceConfig(weight=0.0)}}, "weight must be finite and above 0, not 0.0"),
        ({"sources": {"a": SourceConfig(weight=float("nan"))}}, "weight must be .* not nan"),
        ({"sources": {"a": SourceConfig(weight=float("inf"))}}, "weight must be .* not inf"),
        ({"sources": {"a": SourceConfig(max_epochs=-1.0)}}, "max_epochs must be .* not -1.0"),
    ],
)
def test_mistakes_are_found_before_the_long_work(tmp_path, fields, message):
    with refused(message):
        prepare_data(dataclasses.replace(two_sources(tmp_path), **fields), **RUN)
    assert not list((tmp_path / "cache").rglob("*.bin"))
