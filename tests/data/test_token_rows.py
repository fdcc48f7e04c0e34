"""Demonstrations and rows that a run exported, read again as training data."""

import json

from absl import flags
import pytest

from k2jax.config.schema import SourceConfig
from k2jax.data.build_shards import prepare_shards
from k2jax.text import byte_tokenizer
from k2jax.trajectories import define_flags, main
from k2jax.trajectory import TrajectoryStore
from tests.data.corpora import data_config, write_records
from tests.data.test_conversations import conversations_of
from tests.data.test_trajectory_source import deep, prepared, sampled
from tests.refusal import refused

BYTES = byte_tokenizer()


def command(workdir, **options):
    """Runs ``k2jax.trajectories`` on a workdir."""
    values = flags.FlagValues()
    define_flags(values)
    values(["trajectories", *(f"--{name}={value}" for name, value in options.items())])
    return main(values, str(workdir))


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    BYTES.save(folder / "tokenizer")
    trajectories = [sampled(prompt, [[7, prompt, 1], [8, 1]]) for prompt in range(20)] + [deep(30)]
    TrajectoryStore(folder / "trajectories").write(0, trajectories)
    return folder, trajectories


def read(folder, path, tokenizer=BYTES, **fields):
    source = SourceConfig(kind="token_rows", path=str(path))
    return prepare_shards("s", data_config(folder, {"s": source}, **fields), tokenizer)


def test_exported_demonstrations_are_the_training_data_that_their_store_is(tmp_path, workdir):
    folder, trajectories = workdir
    out = tmp_path / "demonstrations.jsonl"
    assert command(folder, filters="finished,correct_answer", out=out) == 0
    stored = conversations_of(prepared(tmp_path, trajectories, filters=("finished", "correct_answer")), 16)
    assert [sorted(part) for part in conversations_of(read(tmp_path / "rows", out), 16)] == [
        sorted(part) for part in stored
    ]
    assert all(stored)


@pytest.mark.parametrize("form", ["paths", "turns", "flat"])
def test_rows_of_every_format_that_is_a_sequence_are_read(tmp_path, workdir, form):
    out = tmp_path / "rows.jsonl"
    command(workdir[0], format=form, out=out)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    shards = read(tmp_path / "cache", out)
    assert shards.manifest["skipped"]["count"] == 0
    assert sum(part["assistant_tokens"] for part in shards.manifest["splits"].values()) == sum(
        sum(record["mask"]) for record in records
    )


GOOD = [
    {"tokens": [0, n + 5, 7, 1], "mask": [False, False, True, True], "tokenizer": BYTES.fingerprint} for n in range(8)
]
WRONG = [
    ({"tokenizer": "0" * 64}, "it names the tokenizer '0000"),
    ({"tokenizer": None}, "it names no tokenizer"),
    ({"parent": [-1, 0, 1, 2]}, "a row of a tree"),
    ({"tokens": [0, 5, 7, 10**6]}, "the token 1000000, which the vocabulary"),
    ({"tokens": [0, 5, 7, 1.5]}, "tokens is"),
    ({"tokens": None}, "tokens is None"),
    ({"mask": [True]}, "mask has 1 values for 4 tokens"),
    ({"mask": [0, 0, 1, 1]}, "mask is"),
    ({"mask": [False] * 4}, "nothing that the assistant wrote"),
    ({"prompt": 9}, "prompt is 9"),
]


@pytest.mark.parametrize(("change", "words"), WRONG)
def test_rows_that_are_not_of_this_vocabulary_or_malformed_are_reported(tmp_path, change, words):
    path = write_records(tmp_path / "rows.jsonl", [*GOOD, GOOD[0] | change])
    skipped = read(tmp_path / "cache", path).manifest["skipped"]
    assert skipped["count"] == 1 and words in skipped["first"][0]


def test_a_file_of_rows_as_a_store_of_trajectories_names_the_kind_of_source(tmp_path):
    path = write_records(tmp_path / "rows.k2t", GOOD)
    source = SourceConfig(kind="trajectories", path=path)
    with refused("no file of trajectories: rows .* are a source of kind token_rows"):
        prepare_shards("s", data_config(tmp_path / "cache", {"s": source}), BYTES)


@pytest.mark.parametrize(
    ("options", "words"), [({"out": "x.jsonl"}, "give --format"), ({"out": "x", "format": "paths"}, ".jsonl")]
)
def test_a_file_is_named_as_what_is_written_into_it(tmp_path, monkeypatch, workdir, options, words):
    monkeypatch.chdir(tmp_path)
    with refused(words):
        command(workdir[0], **options)
    assert not list(tmp_path.iterdir())
