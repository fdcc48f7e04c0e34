import copy
import dataclasses
import functools
import hashlib
import json
import shutil

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.data import build_shards, tokenised
from k2jax.data.build_shards import prepare_shards
from k2jax.data.manifest import read_manifest, write_manifest
from k2jax.data.measure import TextMeasure
from k2jax.data.shards import TokenStream, open_shards
from k2jax.data.split_writer import SplitWriter
from k2jax.text import byte_tokenizer
from tests.data.corpora import data_config, jsonl_file, stored, text_folder, words
from tests.refusal import refused

BYTES = byte_tokenizer()


def prepared(tmp_path, texts, **fields):
    source = text_folder(tmp_path / "corpus", texts)
    return prepare_shards("s", data_config(tmp_path / "cache", {"s": source}, **fields), BYTES)


def existing(tmp_path, **fields):
    """Configuration of the shards that ``prepared`` wrote."""
    return data_config(tmp_path / "cache", {"s": text_folder(tmp_path / "corpus", [])}, **fields)


def cache_folder(tmp_path):
    (folder,) = (tmp_path / "cache" / "shards").iterdir()
    return folder


def test_every_document_is_stored_once_whole_and_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(build_shards, "TOKENS_PER_SHARD", 100)
    monkeypatch.setattr(tokenised, "BATCH_CHARACTERS", 50)
    texts = [*words(60), "[BOS][EOS] spelled out", "long " * 100]
    shards = prepared(tmp_path, texts)
    train, held_out = stored(shards.train), stored(shards.held_out)
    assert sorted(train + held_out) == sorted(texts) and held_out
    assert train == [text for text in texts if text in train]
    for stream, split in ((shards.train, train), (shards.held_out, held_out)):
        sizes = [len(text.encode()) for text in split]
        assert (stream.documents, stream.bytes) == (len(split), sum(sizes))
        assert (stream.tokens, stream.targets) == (sum(sizes) + 2 * len(split), sum(sizes) + len(split))
        assert stream.document_bytes.tolist() == sizes
    files = sorted(p.name for p in (cache_folder(tmp_path) / "train").glob("tokens-*"))
    assert files == [f"tokens-{i:05d}.bin" for i in range(-(-shards.train.tokens // 100))]


def test_the_manifest_says_what_is_there(tmp_path):
    shards = prepared(tmp_path, [*words(40), b"\xff"])
    folder, manifest = cache_folder(tmp_path), shards.manifest
    assert manifest["format"] == 2
    assert manifest["tokenizer"]["fingerprint"] == BYTES.fingerprint
    assert manifest["skipped"]["count"] == 1 and "0040.txt" in manifest["skipped"]["first"][0]
    on_disk = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    del on_disk["manifest.json"]
    assert manifest["files"] == {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in on_disk.items()
    }
    measure = TextMeasure()
    for text in stored(shards.held_out):
        measure.add(text.encode())
    counts = {"documents": shards.held_out.documents, "tokens": shards.held_out.tokens, "bytes": shards.held_out.bytes}
    assert manifest["splits"]["held_out"] == counts | measure.finish()
    assert set(manifest["splits"]["train"]) == set(counts)


@settings(max_examples=30)
@given(
    st.lists(st.text("ab", min_size=1, max_size=2), min_size=2, max_size=12), st.sampled_from([0.0, 0.05, 0.5, 0.95])
)
def test_copies_land_on_one_side_and_both_sides_have_documents(tmp_path_factory, texts, fraction):
    folder = tmp_path_factory.mktemp("x")
    source = jsonl_file(folder / "x.jsonl", texts)
    config = data_config(folder / "cache", {"s": source}, held_out=fraction)
    if len(set(texts)) == 1:
        with refused("all with the same text: training and validation need at least two"):
            prepare_shards("s", config, BYTES)
        return
    shards = prepare_shards("s", config, BYTES)
    train, held_out = stored(shards.train), stored(shards.held_out)
    assert train and held_out and not set(train) & set(held_out)
    assert sorted(train + held_out) == sorted(texts)


def test_one_document_is_not_enough(tmp_path):
    with refused(r"has one document: .*cut the text into several files"):
        prepared(tmp_path, ["only one"])
    assert list((tmp_path / "cache" / "shards").iterdir()) == []


def test_shards_are_built_once_and_again_when_files_or_settings_change(tmp_path, monkeypatch):
    prepared(tmp_path, words(10))
    config = existing(tmp_path)
    build, built = build_shards._build_folder, []
    monkeypatch.setattr(build_shards, "_build_folder", lambda *args: (built.append(1), build(*args)))
    prepare_shards("s", config, BYTES)
    prepare_shards("s", dataclasses.replace(config, sequence_length=99), BYTES)
    assert not built
    prepare_shards("s", dataclasses.replace(config, held_out=0.3), BYTES)
    (tmp_path / "corpus" / "0000.txt").write_text("changed")
    shards = prepare_shards("s", config, BYTES)
    assert "changed" in stored(shards.train) + stored(shards.held_out)
    assert len(built) == 2


def test_corrupt_records_in_the_cache_still_fail_when_asked_to(tmp_path):
    prepared(tmp_path, [*words(10), b"\xff"])
    with refused(r"'s' has 1 corrupt records, the first in .*0010\.txt"):
        prepare_shards("s", existing(tmp_path, on_corrupt="fail"), BYTES)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder of shards, which is only read."""
    folder = tmp_path_factory.mktemp("built")
    prepared(folder, words(10))
    return cache_folder(folder)


@pytest.fixture
def folder(built, tmp_path):
    """A copy of the folder, to damage it."""
    return shutil.copytree(built, tmp_path / "copy")


def refused_folder(folder, message):
    with refused(message) as error:
        open_shards(folder)
    assert f"delete the folder {folder} " in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ["train/tokens-00000.bin", "held_out/offsets.npy", "train/blocks.npy"])
def test_damaged_files_are_named_with_the_folder_to_delete(folder, name):
    content = (folder / name).read_bytes()
    altered = content[:-2] + bytes([content[-2] ^ 1]) + content[-1:]
    for changed, message in ((content[:-3], "bytes long instead of"), (altered, "altered"), (None, "missing")):
        (folder / name).unlink() if changed is None else (folder / name).write_bytes(changed)
        assert str(folder / name) in refused_folder(folder, message)


def edited(manifest, keys, value):
    """The manifest with another value at a path of keys; the value may be a function of the old one."""
    manifest = copy.deepcopy(manifest)
    *parents, last = keys
    place = functools.reduce(lambda part, key: part[key], parents, manifest)
    place[last] = value(place[last]) if callable(value) else value
    return manifest


EDITS = [
    (("splits", "train", "tokens"), lambda n: n - 1, "at odds with train/tokens"),
    (("splits", "train", "documents"), lambda n: n - 1, "at odds with train/offsets.npy"),
    (("splits", "held_out", "bytes"), lambda n: n + 1, "at odds with held_out/bytes.npy"),
    (("splits", "held_out", "documents"), 0, "not a complete manifest"),
    (("splits", "train", "tokens"), "many", "not a complete manifest"),
    (("splits", "train"), [], "not a complete manifest"),
    (("splits", "train", "tokens"), 10**30, "at odds with train/tokens"),
    (("dtype",), "uint32", "not a complete manifest"),
    (("tokenizer", "vocab_size"), 2**20, "not a complete manifest"),
    (("tokenizer",), None, "not a complete manifest"),
    (("files",), {}, "at odds with train/offsets.npy"),
    (("files", "train/tokens-00000.bin", "bytes"), lambda n: n - 2, "at odds with train/tokens"),
]


@pytest.mark.parametrize(("keys", "value", "message"), EDITS)
def test_a_manifest_is_not_believed(folder, keys, value, message):
    """An edit is seen by the manifest's checksum, and where somebody has mended that as well, by the other files."""
    sealed = json.loads((folder / "manifest.json").read_text())
    changed = edited(read_manifest(folder), keys, value)
    (folder / "manifest.json").write_text(json.dumps(changed | {"sha256": sealed["sha256"]}))
    refused_folder(folder, r"manifest\.json is altered")
    write_manifest(folder, changed)
    refused_folder(folder, message)


NO_MANIFESTS = [b"", b"\xff{}", b"[]", b"null", b"7", b"{}", b'{"format": 2}', b"[" * 100_000]
NO_MANIFESTS += [b'{"format": 1%s}' % (b"0" * 9999), b'{"format": 1}', None]


def test_what_is_no_manifest_is_one_line(folder):
    for content in NO_MANIFESTS:
        (folder / "manifest.json").unlink() if content is None else (folder / "manifest.json").write_bytes(content)
        refused_folder(folder, r"manifest\.json is (not|altered|missing|of format '1', not 2)")


class LeavesItsVocabulary:
    """The byte tokenizer, but for one id in place of "~"."""

    def __init__(self, wrong):
        self._wrong = wrong

    def __getattr__(self, name):
        return getattr(BYTES, name)

    def encode_batch(self, texts):
        return [np.where(ids == 2 + ord("~"), self._wrong, ids.astype(np.int64)) for ids in BYTES.encode_batch(texts)]


def test_ids_outside_the_vocabulary_are_never_written(tmp_path):
    config = data_config(tmp_path / "cache", {"s": text_folder(tmp_path / "corpus", [*words(10), "a ~ b"])})
    for wrong in (258, 2**16 + 5, 2**32 - 1, -1):
        with refused(rf"source 's': the tokenizer gave the id {wrong} .*outside \[0, 258\)"):
            prepare_shards("s", config, LeavesItsVocabulary(wrong))
        assert list((tmp_path / "cache" / "shards").iterdir()) == []
    prepare_shards("s", config, LeavesItsVocabulary(257))


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=8),
    st.integers(4, 30),
    st.sampled_from(["uint16", "uint32"]),
    st.data(),
)
def test_any_stretch_of_the_stream_reads_back_over_shards(tmp_path_factory, lengths, per_shard, dtype, data):
    folder = tmp_path_factory.mktemp("x")
    largest = np.iinfo(dtype).max if dtype == "uint16" else 2**31 - 1
    documents = [largest - np.arange(length) for length in lengths]
    writer = SplitWriter(folder, "train", dtype, per_shard)
    for i, document in enumerate(documents):
        writer.add(document, i)
    files = writer.finish()
    stream = TokenStream(folder, "train", {"dtype": dtype, "splits": {"train": writer.counts()}, "files": files})
    whole = np.concatenate(documents)
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(start + 1, len(whole)))
    tokens = stream.read(start, stop)
    assert tokens.dtype == np.int32 and np.array_equal(tokens, whole[start:stop])


def test_large_vocabularies_take_four_bytes(tmp_path, monkeypatch):
    tokenizer = byte_tokenizer()
    monkeypatch.setattr(tokenizer, "vocab_size", 65_537)
    config = data_config(tmp_path / "cache", {"s": text_folder(tmp_path / "corpus", words(5))})
    shards = prepare_shards("s", config, tokenizer)
    assert shards.manifest["dtype"] == "uint32"
    assert len(stored(shards.train)) + len(stored(shards.held_out)) == 5
