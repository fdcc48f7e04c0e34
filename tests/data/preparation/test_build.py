"""The shards of a source do not depend on how it is cut, on who does the tasks, or on interruptions."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from k2jax.config.schema import SourceConfig, StepsConfig
from k2jax.data.build_shards import prepare_shards
from k2jax.data.preparation import cutting, part_files
from k2jax.data.preparation.pools import InProcess, ProcessPool, open_pool
from k2jax.data.preparation.tokenising import Tokenising
from k2jax.text import byte_tokenizer
from tests.checkpoint.test_full_disk import files_end_at
from tests.data.preparation import odd_corpus
from tests.refusal import refused

# What one process gave that read each source from its beginning to its end, before sources were cut into tasks.
IN_ONE_PASS = {
    "jsonl": "5fd4dfde014e99ef",
    "chat": "b76fcbe8e9871f64",
    "parquet": "32cb6dcefc6518fd",
    "text": "a85b753e1944cefc",
    "limited": "edc98c819f897d48",
}


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    return folder, odd_corpus.sources(folder)


def built(tmp_path, corpus, name, pool, cache="cache", **fields):
    folder, sources = corpus
    config = odd_corpus.config(tmp_path / cache, sources, **fields)
    return odd_corpus.fingerprint(prepare_shards(name, config, byte_tokenizer(), pool=pool), folder)


@pytest.mark.parametrize("task_bytes", [pytest.param(50, marks=pytest.mark.slow), 1500, 1 << 22])
@pytest.mark.parametrize("name", odd_corpus.KINDS)
def test_shards_and_manifest_are_those_of_one_pass_however_small_the_tasks(
    name, task_bytes, corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(cutting, "TASK_BYTES", task_bytes)
    monkeypatch.setattr(part_files, "_BLOCK_BYTES", 500)
    if task_bytes == 1500:
        assert len(list(cutting.cut(name, corpus[1][name]))) > 5, "otherwise nothing was joined"
    assert built(tmp_path, corpus, name, InProcess()) == IN_ONE_PASS[name]
    assert not list((tmp_path / "cache/parts").rglob("*.*")), "parts are not needed beside shards"


@pytest.mark.parametrize("task_bytes", [1, 1 << 22])
def test_what_is_behind_the_last_document_that_is_wanted_is_not_reported(task_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(cutting, "TASK_BYTES", task_bytes)
    path = tmp_path / "a.jsonl"
    path.write_text('1\n{"text": "a"}\n2\n{"text": "b"}\n3\n{"text": "c"}\n')
    for most, count in ((0, 3), (3, 3), (2, 2)):
        sources = {"s": SourceConfig(kind="jsonl", path=str(path), max_documents=most)}
        config = odd_corpus.config(tmp_path / "cache", sources)
        skipped = prepare_shards("s", config, byte_tokenizer(), pool=InProcess()).manifest["skipped"]
        assert skipped["count"] == count and len(skipped["first"]) == count


def test_files_whose_lines_have_others_beside_them_are_not_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(cutting, "TASK_BYTES", 5)
    path = tmp_path / "documents/a.jsonl"
    path.parent.mkdir()
    path.write_text('{"text": "a"}\n' * 9)
    beside = tmp_path / "attributes/a/a.jsonl"
    beside.parent.mkdir(parents=True)
    beside.write_text('{"attributes": {}}\n' * 9)
    tasks = [
        len(list(cutting.cut("s", SourceConfig(kind="jsonl", path=str(path), exclude=exclude))))
        for exclude in ((), ("a/b",))
    ]
    assert tasks == [26, 1]


def test_processes_give_the_same_and_one_that_dies_is_replaced(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(cutting, "TASK_BYTES", 3000)
    pool = ProcessPool(2)
    assert built(tmp_path, corpus, "jsonl", pool) == IN_ONE_PASS["jsonl"]
    for process in list(pool._processes):
        process.kill()
    assert built(tmp_path, corpus, "chat", pool) == IN_ONE_PASS["chat"]
    pool.close()


def test_records_are_refused_in_order_with_the_line_of_the_file(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(cutting, "TASK_BYTES", 1500)
    with refused(r"a\.jsonl, line 7, byte 1299: not JSON"):  # the sixth record, behind a blank line
        built(tmp_path, corpus, "jsonl", InProcess(), on_corrupt="fail")
    manifest = prepare_shards("jsonl", odd_corpus.config(tmp_path / "cache", corpus[1]), byte_tokenizer()).manifest
    lines = (corpus[0] / "a.jsonl").read_bytes().split(b"\n")
    for line in manifest["skipped"]["first"]:
        if "a.jsonl" in line:
            number = int(line.split("line ")[1].split(",")[0])
            offset = int(line.split("byte ")[1].split(":")[0])
            assert offset == sum(len(each) + 1 for each in lines[: number - 1])
            assert lines[number - 1].strip() in (b"{bad", b'{"text": "\xff"}', b'{"no": 1}', b"3")


def test_what_was_done_before_the_end_of_a_process_is_not_done_again(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(cutting, "TASK_BYTES", 700)
    tokenizer, encoded = byte_tokenizer(), []
    encode = tokenizer.encode_batch

    def dies_after_twenty(texts):
        encoded.append(texts)
        if len(encoded) == 20:
            raise KeyboardInterrupt
        return encode(texts)

    monkeypatch.setattr(tokenizer, "encode_batch", dies_after_twenty)
    config = odd_corpus.config(tmp_path / "cache", corpus[1])
    with pytest.raises(KeyboardInterrupt):
        prepare_shards("jsonl", config, tokenizer, pool=InProcess())
    kept = len(list((tmp_path / "cache/parts").rglob("*.part")))
    shards = prepare_shards("jsonl", config, tokenizer, pool=InProcess())
    assert odd_corpus.fingerprint(shards, corpus[0]) == IN_ONE_PASS["jsonl"]
    tasks = len(list(cutting.cut("jsonl", corpus[1]["jsonl"])))
    assert kept == 19 and len(encoded) <= tasks + 1


def test_a_part_that_is_damaged_is_refused_and_one_that_another_build_removed_is_made_again(
    corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(cutting, "TASK_BYTES", 700)
    config = odd_corpus.config(tmp_path / "cache", corpus[1])

    class Spoils(InProcess):
        def __init__(self, spoil):
            self.spoil = spoil

        def run(self, function, items):
            for item in items:
                function(item)
                self.spoil(function.path(item))
                yield

    def cut_short(path):
        path.write_bytes(path.read_bytes()[:-3])

    def altered(path):
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)

    for spoil in (cut_short, altered):
        with refused("is not as it was written: delete it to have it made again"):
            prepare_shards("jsonl", config, byte_tokenizer(), pool=Spoils(spoil))
        for path in (tmp_path / "cache/parts").rglob("*.part"):
            path.unlink()
    shards = prepare_shards("jsonl", config, byte_tokenizer(), pool=Spoils(type(tmp_path).unlink))
    assert odd_corpus.fingerprint(shards, corpus[0]) == IN_ONE_PASS["jsonl"]


def test_other_content_tokens_or_settings_have_other_parts(corpus, tmp_path):
    sources = corpus[1]
    config = odd_corpus.config(tmp_path, sources)
    make = Tokenising(name="chat", config=config, tokenizer=byte_tokenizer(), threshold=5, folder=tmp_path)
    [task] = cutting.cut("chat", sources["chat"])
    paths = {
        make.path(task),
        dataclasses.replace(make, threshold=6).path(task),
        dataclasses.replace(make, tokenizer=byte_tokenizer(("<x>",))).path(task),
        dataclasses.replace(make, config=dataclasses.replace(config, sequence_length=9)).path(task),
        make.path(task._replace(stamps=((1, 2),))),
        make.path(task._replace(parts=(task.parts[0]._replace(begin=7),))),
    }
    assert len(paths) == 6


BUILD = """
import sys
from pathlib import Path
from k2jax.config.schema import SourceConfig, StepsConfig
from k2jax.data.build_shards import prepare_shards
from k2jax.data.preparation import cutting
from k2jax.data.preparation.pools import open_pool
from k2jax.text import byte_tokenizer
from tests.checkpoint.test_full_disk import files_end_at
from tests.data.preparation import odd_corpus
cutting.TASK_BYTES = 60_000
folder, cache, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
config = odd_corpus.config(cache, {"s": odd_corpus.SourceConfig(kind="jsonl", path=str(folder / "*.jsonl"))})
with open_pool(workers) as pool:
    shards = prepare_shards("s", config, byte_tokenizer(), pool=pool)
print(odd_corpus.fingerprint(shards, folder))
"""


@pytest.mark.slow
def test_builds_that_are_killed_at_any_moment_end_with_the_same_shards(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    rng = random.Random(1)
    with (folder / "a.jsonl").open("w") as file:
        for number in range(3000):
            file.write(json.dumps({"text": odd_corpus.text(rng, 200)}) + "\n" * (1 + number % 2))

    def start(cache, workers):
        command = [sys.executable, "-c", BUILD, str(folder), str(tmp_path / cache), str(workers)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.getcwd()})

    expected = {start(f"cache{workers}", workers).communicate()[0] for workers in (1, 2, 4)}
    assert len(expected) == 1 and len(next(iter(expected))) == 17
    kept = [0]
    for _ in range(5):
        build = start("killed", 2)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and build.poll() is None:
            if len(list((tmp_path / "killed/parts").rglob("*.part"))) >= kept[-1] + 5:
                break
            time.sleep(0.01)
        time.sleep(rng.random() / 5)
        build.send_signal(signal.SIGKILL)
        build.communicate()
        kept.append(len(list((tmp_path / "killed/parts").rglob("*.part"))))
    assert kept == sorted(kept) and kept[-1] > 20, "each build goes on where the one before was killed"
    assert {start("killed", 2).communicate()[0]} == expected
    left = [path for path in (tmp_path / "killed").rglob("*") if "tmp" in path.name or path.suffix == ".part"]
    assert not left


def test_one_worker_is_this_process_and_more_are_not():
    with open_pool(1) as one, open_pool(2) as two:
        assert list(one.run(process_of, range(3))) == [os.getpid()] * 3
        assert list(two.run(process_of, range(1))) == [os.getpid()], "one task is not worth a process"


def process_of(number):
    return os.getpid()


def test_a_full_disk_is_one_line_wherever_it_is_met(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(cutting, "TASK_BYTES", 700)
    steps = StepsConfig(exact_duplicates=True)
    for limit in (60, 700):  # the attributes of the first task; its part
        with files_end_at(limit), refused("no room in .*set data.cache_dir to a larger disk"):
            built(tmp_path, corpus, "jsonl", InProcess(), steps=steps)
    with files_end_at(700), refused("no room in .*set data.cache_dir to a larger disk"):
        built(tmp_path, corpus, "jsonl", InProcess())
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.name.endswith(".tmp")]
    assert built(tmp_path, corpus, "jsonl", InProcess()) == IN_ONE_PASS["jsonl"]
