"""Sources whose files lie in a store give the documents of local ones, or nothing at all."""

import bz2
import dataclasses
import gzip
import json
import lzma
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest

from k2jax.config.schema import SourceConfig
from k2jax.data.build_shards import prepare_shards
from k2jax.data.preparation.pools import InProcess
from k2jax.data.source_files import source_files
from k2jax.data.sources import CorruptRecords, describe, documents, files, texts_of
from k2jax.files.objects import attempts, cached_reads
from k2jax.text import byte_tokenizer
from tests.data.corpora import data_config, stored, words
from tests.files.objects.fake_store import put
from tests.refusal import refused

TEXTS = words(300)
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Chunks of a kilobyte, so that every file has several."""
    monkeypatch.setattr(cached_reads, "CHUNK", 1000)


def zstandard(content):
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def parquet():
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), sink, row_group_size=100)
    return sink.getvalue().to_pybytes()


def read(kind, path):
    return [text for _, text in documents("s", SourceConfig(kind=kind, path=path), CorruptRecords("fail"))]


FILES = {
    "a.jsonl": lambda: LINES,
    "a.jsonl.gz": lambda: gzip.compress(LINES),
    "a.jsonl.bz2": lambda: bz2.compress(LINES),
    "a.jsonl.xz": lambda: lzma.compress(LINES),
    "a.jsonl.zst": lambda: zstandard(LINES),
    "a.parquet": parquet,
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_is_read_as_from_the_disk_whatever_fails(store, name):
    url = put(f"b/f/{name}", FILES[name]())
    store.failures += [None, None, OSError("503"), None, None, 3, None, None, ConnectionResetError()] * 6
    kind = "parquet" if name.endswith("parquet") else "jsonl"
    assert read(kind, url) == [text for text in TEXTS if text]


@pytest.mark.parametrize("name", FILES)
def test_a_store_that_fails_is_never_a_shorter_corpus(store, name, monkeypatch):
    """Not a corrupt record, which would be skipped, in whatever library that reads the file."""
    url = put(f"b/f/{name}", FILES[name]())
    kind = "parquet" if name.endswith("parquet") else "jsonl"
    [path] = source_files("s", SourceConfig(kind=kind, path=url)).paths
    store.failures += [None] * 2 + [OSError("Slow Down")] * 200
    monkeypatch.setattr(
        attempts, "time", SimpleNamespace(monotonic=lambda: 0.0)
    )  # the machine's own pauses are not counted
    with refused(f"{url} failed after 8 attempts in 0 s: OSError: 'Slow Down'"):
        list(documents("s", SourceConfig(kind=kind, path=str(path)), CorruptRecords()))


def test_folders_and_patterns(store):
    for name in ("x/a.jsonl", "x/y/b.JSONL", "x/c.json", "x/y/d.json", "x/.hidden.jsonl", "x/e.txt", "x/z/f"):
        put(f"b/{name}", b'{"text": "%s"}\n' % name.encode() if name != "x/c.json" else b"[\n1]")
    found = source_files("s", SourceConfig(kind="jsonl", path="fake://b/x/"))
    assert [path.name for path in found.paths] == ["a.jsonl", "b.JSONL", "d.json"]
    assert found.left_out == {
        "hidden": 1, "*.txt": 1, "without an end of the name": 1, "*.json that have not one object a line": 1
    }  # fmt: skip
    for pattern, names in {
        "fake://b/x/*": ["x/.hidden.jsonl", "x/a.jsonl", "x/c.json", "x/e.txt"],
        "fake://b/**/[bd].*": ["x/y/b.JSONL", "x/y/d.json"],
        "fake://b/x/y/?.json": ["x/y/d.json"],
        "fake://b/x/**": ["x/.hidden.jsonl", "x/a.jsonl", "x/c.json", "x/e.txt", "x/y/b.JSONL", "x/y/d.json", "x/z/f"],
        "fake://b/x/e.txt": ["x/e.txt"],
    }.items():
        paths = source_files("s", SourceConfig(kind="text", path=pattern)).paths
        assert [path.place.removeprefix("b/") for path in paths] == names, pattern
    for nothing in ("fake://b/none", "fake://b/x/*.parquet", "fake://b/x/z"):
        with refused(f"source 's': {nothing.replace('*', '.')} holds no objects that are read"):
            source_files("s", SourceConfig(kind="jsonl", path=nothing))


EXCLUDING = SourceConfig(kind="jsonl", path="fake://b/web", exclude=("dups/near>=0.5", "tags/bad"))


def lines(values):
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def put_dolma(near, bad=()):
    """Two files of 40 documents; returns the texts of those that neither attribute excludes."""
    for name in ("x.jsonl.gz", "sub/y.jsonl"):
        content = {
            f"documents/{name}": [{"id": f"{name} {n}", "text": f"{name} is {n}"} for n in range(40)],
            f"attributes/dups/{name}": [
                {"id": f"{name} {n}", "attributes": {"near": [[0, 1, n in near]]}} for n in range(40)
            ],
            f"attributes/tags/{name}": [
                {"id": f"{name} {n}", "attributes": {"bad": [[0, 1, 0]] * (n in bad)}} for n in range(40)
            ],
        }
        for place, values in content.items():
            put(f"b/web/{place}", gzip.compress(lines(values)) if name.endswith("gz") else lines(values))
    return [f"{name} is {n}" for name in ("sub/y.jsonl", "x.jsonl.gz") for n in range(40) if n not in {*near, *bad}]


def stored_texts(cache):
    """What a build of the source has in its shards, sorted, and the names of all corpora of the cache."""
    shards = prepare_shards("s", data_config(cache, {"s": EXCLUDING}), byte_tokenizer(), pool=InProcess())
    return sorted(stored(shards.train) + stored(shards.held_out)), {path.name for path in cache.glob("shards/*")}


def test_attributes_in_a_store_exclude_documents_and_are_part_of_the_key(store, tmp_path):
    kept = put_dolma({3, 4}, {7})
    store.failures += [None, OSError("503"), None, 3, ConnectionResetError()] * 6
    texts, built = stored_texts(tmp_path)
    assert texts == sorted(kept)
    asked = [each for each in store.asked if each.startswith("read b/web/attributes")]
    assert len({each.split()[1] for each in asked}) == 4
    store.asked.clear()
    assert stored_texts(tmp_path) == (texts, built)
    assert not [each for each in store.asked if not each.startswith("list")], "it is built, and the folders are listed"
    marks = [{"id": f"sub/y.jsonl {n}", "attributes": {"near": [[0, 1, 1.0]] * (n == 9)}} for n in range(40)]
    put("b/web/attributes/dups/sub/y.jsonl", lines(marks))
    kept = [*(set(kept) - {"sub/y.jsonl is 9"}), "sub/y.jsonl is 3", "sub/y.jsonl is 4"]
    others, both = stored_texts(tmp_path)
    assert others == sorted(kept) and len(both) == 1 + len(built)


def test_attributes_in_a_store_are_refused_where_they_are_missing_or_written_meanwhile(store):
    put_dolma({3})
    [part, _] = files("s", EXCLUDING)
    put(part.attributes[0].place, lines([{"id": "sub/y.jsonl 0", "attributes": {}}] * 40))
    with refused("fake://b/web/attributes/dups/sub/y.jsonl .*written again"):
        list(texts_of(EXCLUDING, [part], CorruptRecords()))
    store.store.pop("/b/web/attributes/tags/x.jsonl.gz")
    with refused("documents/x.jsonl.gz has no attributes in fake://b/web/attributes/tags/x.jsonl.gz: write them"):
        describe("s", EXCLUDING)
    with refused("exclude reads attributes beside a folder 'documents', and fake://b/loose.jsonl is in none"):
        describe("s", dataclasses.replace(EXCLUDING, path=put("b/loose.jsonl", b"{}")))


def test_the_key_of_the_cache_follows_the_content(store):
    source = SourceConfig(kind="text", path=put("b/f/a.txt", b"one"))
    first = describe("s", source)
    assert describe("s", source) == first
    put("b/f/a.txt", b"two")
    assert describe("s", source) != first
    assert json.loads(json.dumps(first))["files"][0][:2] == ["fake://b/f/a.txt", 3]
