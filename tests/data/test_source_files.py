"""Every file of a folder is read, or counted and named: compressed and differently named records, links, marks."""

import bz2
import functools
import gzip
import json
import lzma
import os

import pyarrow as pa
import pytest

from k2jax.config.schema import DataConfig, SourceConfig, TokenizerConfig
from k2jax.data import prepare_data
from k2jax.data.source_files import source_files
from k2jax.data.sources import CorruptRecords, documents, report_unread
from k2jax.files.content import LARGEST, text_of_file
from k2jax.tasks.record_fields import read_records
from tests.refusal import refused


def compressed(name: str, data: bytes) -> bytes:
    if name.endswith(".zst"):
        return bytes(pa.compress(data, "zstd", asbytes=True))
    return {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": functools.partial(lzma.compress, preset=0)}.get(
        os.path.splitext(name)[1], bytes
    )(data)


def source(path, kind="jsonl"):
    return SourceConfig(kind=kind, path=str(path))


def texts(path, kind="jsonl"):
    report = CorruptRecords()
    report_unread("s", source(path, kind), report)
    return [text for _, text in documents("s", source(path, kind), report)], report


NAMES = ["a.jsonl", "b.jsonl.gz", "c.json", "d.ndjson", "e.JSONL", "f.jsonl.zst", "g.jsonl.bz2", "h.ndjson.XZ"]


def test_a_folder_gives_the_records_of_all_its_files_however_they_are_named_compressed_or_linked(tmp_path):
    folder, other = tmp_path / "corpus", tmp_path / "other"
    folder.mkdir(), other.mkdir()
    for name in NAMES:
        (folder / name).write_bytes(compressed(name, json.dumps({"text": name}).encode() + b"\n"))
    (other / "z.jsonl").write_bytes(b'{"text": "z"}\n')
    (folder / "link").symlink_to(other)
    (other / "circle").symlink_to(folder)
    (folder / "dead.jsonl").symlink_to(tmp_path / "nothing")
    for name in (".hidden.jsonl", "README.md", "notes.md", "LICENSE", "whole.json"):
        (folder / name).write_bytes(b'[\n{"text": "no"}]')
    found, report = texts(folder)
    assert sorted(found) == sorted([*NAMES, "z"])
    assert report.shown == [f"{folder}/dead.jsonl: is a link to nothing: No such file or directory"]
    assert report.left_out == {
        "*.json that have not one object a line": 1,
        "*.md": 2,
        "hidden": 1,
        "links to folders that are listed": 1,
        "without an end of the name": 1,
    }
    line = source_files("s", source(folder)).summary("web")
    assert line.startswith("web: reads 9 files and leaves out 6: 1 *.json that") and "2 *.md" in line
    with refused("dead.jsonl: is a link to nothing"):
        report_unread("s", source(folder), CorruptRecords("fail"))


def test_what_is_left_out_is_in_the_manifest_and_in_a_line_at_every_start(tmp_path):
    folder, lines = tmp_path / "corpus", []
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(20)))
    (folder / "more.csv").write_text("text\nno\n")
    config = DataConfig(
        sources={"web": source(folder)},
        tokenizer=TokenizerConfig(kind="bytes"),
        sequence_length=8,
        cache_dir=str(tmp_path / "cache"),
    )
    for _ in range(2):
        data = prepare_data(config, batch_size=1, seed=0, steps=1, log=lines.append)
    assert data.manifests["web"]["left_out"] == {"*.csv": 1}
    assert lines.count("web: reads 1 files and leaves out 1: 1 *.csv") == 2


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.xz", "a.zst"])
def test_a_compressed_file_is_known_by_its_content_and_one_that_is_broken_off_is_reported_once(tmp_path, name):
    data = b"".join(json.dumps({"text": os.urandom(300).hex()}).encode() + b"\n" for _ in range(2000))
    path = tmp_path / "named"  # without an end
    path.write_bytes(compressed(name, data))
    whole, report = texts(path)
    assert len(whole) == 2000 and not report.count
    path.write_bytes(compressed(name, data)[:-2000])
    part, report = texts(path)
    assert part and part == whole[: len(part)] and report.count == 1
    assert report.shown[0].startswith(f"{path}: cannot be read: ") and f"(compressed as .{name[2:]})" in report.shown[0]
    path.write_bytes(compressed(name, b"one text"))
    assert texts(path, "text")[0] == ["one text"]


def test_a_small_file_that_grows_without_end_is_reported(tmp_path, monkeypatch):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"0" * 5000))
    monkeypatch.setattr("k2jax.files.content.LARGEST", 1000)
    monkeypatch.setattr("k2jax.files.readers.LARGEST_RECORD", 1000)
    assert LARGEST > 10**8
    for kind in ("jsonl", "text"):
        with refused("(more|longer) than 1,000 bytes"):
            texts(path, kind)


MARKS = [
    (b"\xef\xbb\xbf", "utf-8", None),
    (b"\xff\xfe", "utf-16-le", "UTF-16"),
    (b"\xfe\xff", "utf-16-be", "UTF-16"),
    (b"\xff\xfe\x00\x00", "utf-32-le", "UTF-32"),
]


@pytest.mark.parametrize(("mark", "encoding", "refusal"), MARKS)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_mark_of_utf8_is_no_part_of_the_text_and_other_encodings_are_named(tmp_path, mark, encoding, refusal, pack):
    path = tmp_path / "b.jsonl"
    path.write_bytes(pack(mark + '{"text": "é\ufeff"}\n{"text": "two"}\n'.encode(encoding)))
    if refusal:
        with refused(f"{path}: cannot be read: it is {refusal}, not UTF-8: convert it with iconv"):
            texts(path)
        with refused(f"math: cannot read {path}: it is {refusal}"):
            list(read_records("math", str(path)))
    else:
        assert texts(path)[0] == ["é\ufeff", "two"]
        assert [record["text"] for record in read_records("math", str(path))] == ["é\ufeff", "two"]
        assert not text_of_file(path).startswith(mark)


def test_a_file_that_is_one_value_over_many_lines_is_reported_once(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps([{"text": "a"}, {"text": "b"}], indent=1))
    with refused(r"x.json, line 1, byte 0: one JSON value over many lines.* jq -c"):
        texts(path)


def test_folders_that_a_pattern_fits_are_counted(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    assert source_files("s", source(f"{tmp_path}/*")).left_out == {"folders of the pattern": 1}
