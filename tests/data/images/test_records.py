"""Parquet, WebDataset tar and documents: the same rows as JSON lines with the same images; one line for each fault."""

import datetime
import gzip
import io
import json
import tarfile

from datasets import Dataset, Features, Image, List, Value
import numpy as np
import PIL.Image
import pyarrow.parquet
import pytest

from k2jax.config import source
from k2jax.data.images.processor import ImageProcessor
from k2jax.data.images.reading import ReadLimits
from k2jax.data.images.records import visual_records
from k2jax.inference.media_prompt import document_prompt
from k2jax.text.media import MEDIA_PAD
from tests.data.corpora import asked, equal, write_records
from tests.data.images.hostile import encoded
from tests.data.images.test_corpus import VISION, documents, image, prepared

SIZES = [(28, 56), (56, 28), (84, 28), (28, 28), (56, 56), (28, 84), (56, 84), (30, 31)]


def pictures():
    rng = np.random.default_rng(1)
    return [encoded(PIL.Image.fromarray(rng.integers(0, 255, (h, w, 3), np.uint8))) for h, w in SIZES]


def conversation(number, parts):
    return asked([*parts, {"type": "text", "text": f"Which is {number}?"}], f"Picture {number}.")["messages"]


def images(*values):
    return [{"type": "image", "image": value} if value else {"type": "image"} for value in values]


@pytest.fixture
def lines(tmp_path):
    """The data of JSON lines: pairs of pictures, one after the other."""
    files = pictures()
    for number, data in enumerate(files):
        (tmp_path / f"{number}.png").write_bytes(data)
    pairs = [images(f"{n}.png", f"{(n + 1) % len(files)}.png") for n in range(len(files))]
    path = write_records(tmp_path / "chat.jsonl", [{"messages": conversation(*pair)} for pair in enumerate(pairs)])
    return prepared(tmp_path, {"chat": source(kind="image_chat", path=path)})


def read(folder, name, data):
    (folder / name).write_bytes(data)
    return prepared(folder, {"chat": source(kind="image_chat", path=str(folder / name))})


def tar(members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def same(a, b):
    """Whether two sources have the same conversations; the split follows the images, and so do the rows."""
    sums = {data.manifests["chat"]["files"]["records.jsonl"]["sha256"] for data in (a, b)}
    return len(sums) == 1 and all(equal(a.loader.batch(step), b.loader.batch(step)) for step in range(3))


@pytest.mark.parametrize("text", [False, True])
def test_parquet_of_hugging_face_is_read_as_json_lines_are(tmp_path, lines, text):
    files = pictures()
    rows = []
    for number in range(len(files)):
        messages = conversation(number, images(None, None))
        messages[1]["content"] = [{"type": "text", "text": messages[1]["content"]}]
        shown = [{"bytes": files[n % len(files)], "path": None} for n in (number, number + 1)]
        rows.append({"messages": json.dumps(messages) if text else messages, "images": shown, "other": number})
    part = {"type": Value("string"), "text": Value("string")}
    messages = Value("string") if text else List({"role": Value("string"), "content": List(part)})
    features = Features({"messages": messages, "images": List(Image()), "other": Value("int64")})
    Dataset.from_list(rows, features=features).to_parquet(tmp_path / "rows.parquet")
    found = list(visual_records(tmp_path / "rows.parquet", ReadLimits()))
    assert "null" not in json.dumps([record.value for record in found])
    assert same(read(tmp_path, "rows.parquet", (tmp_path / "rows.parquet").read_bytes()), lines)


def test_a_tar_is_read_as_json_lines_are(tmp_path, lines):
    members, files = [], pictures()
    for n in range(len(files)):
        paths = [f"set/{n:03d}.{name}.png" for name in "ab"]
        named = [images(None, None), images("a.png", "b.png"), images(*paths)][n % 3]
        record = {"messages": conversation(n, named)}
        pair = [(path, files[(n + i) % len(files)]) for i, path in enumerate(paths)]
        members += [(f"set/{n:03d}.json", json.dumps(record).encode()), *pair]
    assert same(read(tmp_path, "shard.tar", tar(members)), lines)


def test_captions_in_a_tar_are_conversations_without_a_question(tmp_path):
    members = [(f"{n}.{end}", data) for n, file in enumerate(pictures()) for end, data in
               (("jpg", file), ("json", b'{"width": 3}'), ("txt", f"Thing {n}.".encode()))]  # fmt: skip
    (tmp_path / "shard.tar").write_bytes(tar(members))
    records = list(visual_records(tmp_path / "shard.tar", ReadLimits()))
    assert [record.value["messages"][1]["content"] for record in records] == [f"Thing {n}." for n in range(len(SIZES))]
    assert all([part["type"] for part in record.value["messages"][0]["content"]] == ["image"] for record in records)
    data = prepared(tmp_path, {"chat": source(kind="image_chat", path=str(tmp_path))})
    assert documents(data) == len(SIZES)


def told(path, **limits):
    """How many records of a file are usable, and a line for each that is not."""
    records = list(visual_records(path, ReadLimits(**limits)))
    assert not any("\n" in record.where + record.why for record in records)
    return sum(not record.why for record in records), [record.why for record in records if record.why]


def sample(key, shown=1, has=1, data=b"?"):
    record = {"messages": conversation(1, images(*[None] * shown))}
    return [(f"{key}.json", json.dumps(record).encode()), *((f"{key}.{i}.png", data) for i in range(has))]


def test_unusable_samples_of_a_tar_are_one_line_each_and_the_rest_is_read(tmp_path):
    members = [*sample("good"), *sample("few", has=0), ("broken.json", b"{"), *sample("large", data=bytes(1_100_000)),
               ("latin.txt", b"\xe9"), ("latin.png", b"?"), *sample("more", shown=1, has=2), *sample("twice"),
               ("twice.0.png", b"!"), *sample("lot", 9, 9, bytes(950_000)), ("last.cls", b"3"),
               *sample("last")]  # fmt: skip
    (tmp_path / "shard.tar").write_bytes(tar(members))
    usable, lines = told(tmp_path / "shard.tar", megabytes=1)
    words = ("0 images, fewer than parts", "Expecting property", "1.1 MB; at most 1", "utf-8",
             "1 of its 2 images are in", "two of its members have one name", "more than 8 MB together")  # fmt: skip
    assert usable == 2 and len(lines) == len(words)
    assert all(some in line for some, line in zip(words, lines, strict=True)), lines


def test_a_tar_that_is_damaged_is_read_to_there_and_its_end_is_said(tmp_path):
    whole = tar([member for n in range(4) for member in sample(f"s{n}")])
    header = whole.index(b"s2.json")
    flipped = bytearray(whole)
    flipped[header + 100] ^= 1  # of the mode, which the checksum covers
    backwards = bytearray(whole)
    backwards[header + 124 : header + 136] = (-512 % 256**12).to_bytes(12, "big")
    backwards[header + 148 : header + 156] = b" " * 8
    backwards[header + 148 : header + 156] = b"%06o\0 " % sum(backwards[header : header + 512])
    damaged = {
        "flipped": bytes(flipped),
        "backwards": bytes(backwards),
        "emptied": whole[:header] + bytes(512) + whole[header + 512 :],
        "between members": whole[:header],
        "in a header": whole[: header + 100],
        "in a member": whole[: header + 700],
    }
    for name, data in damaged.items():
        (tmp_path / "s.tar").write_bytes(data)
        usable, lines = told(tmp_path / "s.tar")
        assert usable in (1, 2) and len(lines) == 1 and "not readable as a tar" in lines[0], (name, usable, lines)
    for data in (gzip.compress(whole), b"<html>" * 200, b""):
        (tmp_path / "s.tar").write_bytes(data)
        usable, lines = told(tmp_path / "s.tar")
        assert usable == 0 and len(lines) == 1, lines
    (tmp_path / "s.tar").write_bytes(whole)
    assert told(tmp_path / "s.tar") == (4, [])


def test_rows_of_parquet_are_read_in_their_forms_or_one_line_each(tmp_path):
    def read_rows(rows, **limits):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
        return told(tmp_path / "rows.parquet", **limits)

    text, shown = json.dumps(conversation(1, images(None))), b"x" * 1000
    for row in (
        {"messages": text, "images": [shown], "tools": "", "document": "a text beside"},
        {"messages": text, "images": "a.png"},
        {"messages": text, "image": {"bytes": None, "path": "a.png"}},
        {"messages": text.encode(), "image": shown},
        {"document": json.dumps(images(None)), "image": shown},
    ):
        assert read_rows([row, row]) == (2, []), row
    unmarked = json.dumps(conversation(1, [{"type": "text", "text": "<image>"}]))
    for row, why in (
        ({"messages": text, "images": [1]}, "neither bytes nor a path"),
        ({"messages": text, "images": 7}, "neither bytes nor a path"),
        ({"messages": text, "images": [shown, None]}, "neither bytes nor a path"),
        ({"messages": text, "images": [shown], "image": shown}, "1 of its 2 images are in no part"),
        ({"messages": text, "images": [shown * 2000]}, "an image has 2.0 MB; at most 1"),
        ({"messages": "{", "images": [shown]}, "Expecting property"),
        ({"messages": [{"content": [{"type": "text", "at": datetime.datetime(2026, 1, 2)}]}]}, "not JSON serializable"),
        ({"messages": unmarked, "image": shown}, "in no part"),
    ):
        usable, lines = read_rows([row], megabytes=1)
        assert usable == 0 and len(lines) == 1 and why in lines[0], (row, lines)
    _, (line,) = read_rows([{"text": "a"}])
    assert "no column 'messages' or 'document'" in line
    (tmp_path / "rows.parquet").write_bytes(b"PAR1" * 30)
    assert "not readable as parquet" in told(tmp_path / "rows.parquet")[1][0]


def test_all_of_a_document_but_its_images_is_learned(tmp_path):
    files = pictures()
    parts = [{"type": "text", "text": "Before "}, *images("0.png"), {"type": "text", "text": "between "},
             *images("1.png"), {"type": "text", "text": "after."}]  # fmt: skip
    for number, data in enumerate(files):
        (tmp_path / f"{number}.png").write_bytes(data)
    other = [{"type": "text", "text": "Only words."}]
    path = write_records(tmp_path / "chat.jsonl", [{"document": each} for each in (parts, other, [*other, *other])])
    data = prepared(tmp_path, {"chat": source(kind="image_chat", path=path)})
    tokenizer = data.tokenizer
    shown = [image(files[int(part["image"][0])]) if part["type"] == "image" else part for part in parts]
    expected = document_prompt(shown, tokenizer, ImageProcessor(VISION))
    batches = [*data.loader.batches(), *data.held_out.batches(4)]
    rows = [(batch, row) for batch in batches for row in range(4)]
    count = len(expected.tokens) + 1
    places = [(batch, row, start) for batch, row in rows for start in range(192 - count)
              if batch.tokens[row, start : start + count].tolist() == [*expected.tokens, tokenizer.eos]]  # fmt: skip
    batch, row, start = places[0]
    weights, ids = batch.targets["weights"][row], batch.tokens[row]
    learned = [ids[at] for at in range(start + 1, start + count) if weights[at]]
    assert tokenizer.decode([*learned[:-1]]) == "Before \nbetween \nafter." and learned[-1] == tokenizer.eos
    pads = expected.tokens.count(tokenizer.special_id(MEDIA_PAD))
    assert (batch.media[row, start : start + count] >= 0).sum() == pads
