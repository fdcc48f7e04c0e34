"""Indices that are read by pages, and few open files."""

import gc
import json
import os
from pathlib import Path
import pickle
import shutil

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.data import shards
from k2jax.data.manifest import read_manifest, write_manifest
from k2jax.data.paged.array import PAGE
from k2jax.data.paged.open_files import OpenFiles
from k2jax.data.shards import TokenStream, open_shards
from k2jax.data.split_writer import SplitWriter
from k2jax.data.training_data import fingerprint_of
from k2jax.text import byte_tokenizer
from tests.refusal import refused

LENGTHS = np.random.default_rng(0).integers(1, 4, 30_000)  # four pages of offsets
OFFSETS = np.cumsum([0, *LENGTHS])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of shards whose offsets have several pages."""
    folder, files, splits = tmp_path_factory.mktemp("x"), {}, {}
    for split in ("train", "held_out"):
        writer = SplitWriter(folder, split, "uint16", 7_000)
        for number, length in enumerate(LENGTHS.tolist()):
            writer.add(np.full(length, number % 50_000), length)
        files |= writer.finish()
        splits[split] = writer.counts()
    tokenizer = {"vocab_size": 50_000}
    write_manifest(folder, {"format": 2, "splits": splits, "files": files, "dtype": "uint16", "tokenizer": tokenizer})
    return folder


@pytest.fixture(scope="module")
def stream(folder):
    return TokenStream(folder, "train", read_manifest(folder))


@settings(max_examples=30)
@given(st.integers(0, int(OFFSETS[-1]) - 1), st.integers(1, 40_000))
def test_documents_are_found_by_their_place(stream, start, length):
    stop = min(start + length, stream.tokens)
    assert stream.offsets.between(start, stop).tolist() == OFFSETS[(start < OFFSETS) & (stop > OFFSETS)].tolist()


def test_places_at_the_borders_of_pages_are_found(stream):
    for number in (PAGE // 8 - 16, 2 * PAGE // 8 - 16, len(OFFSETS) - 2):  # first values of pages, and the last
        for start in OFFSETS[number - 1 : number + 2].tolist():
            for stop in (start + 1, start + 2, start + 3, stream.tokens):
                expected = OFFSETS[(start < OFFSETS) & (stop > OFFSETS)]
                assert np.array_equal(stream.offsets.between(start, stop), expected)


def test_values_and_slices_are_those_of_the_array(stream):
    assert np.array_equal(np.asarray(stream.offsets), OFFSETS) and len(stream.offsets) == len(OFFSETS)
    assert [stream.offsets[at] for at in (0, -1, 8176)] == OFFSETS[[0, -1, 8176]].tolist()
    assert stream.offsets[9:9].tolist() == [] and stream.offsets[29_990:].tolist() == OFFSETS[29_990:].tolist()
    with pytest.raises(IndexError):
        stream.offsets[len(OFFSETS)]
    with pytest.raises(ValueError, match="step 2"):
        stream.offsets[::2]


def damaged(folder, tmp_path, name, at):
    """A copy with one byte of a file altered."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    content = bytearray((copy / name).read_bytes())
    content[at] ^= 4
    (copy / name).write_bytes(content)
    return copy


def test_an_altered_page_is_met_where_it_is_read_and_nowhere_else(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "VERIFY_BELOW", 0)
    copy = damaged(folder, tmp_path, "train/offsets.npy", PAGE + 8)
    offsets = open_shards(copy).train.offsets
    assert np.array_equal(offsets[:8_000], OFFSETS[:8_000]) and np.array_equal(offsets[17_000:], OFFSETS[17_000:])
    for _ in range(2):
        with refused(rf"offsets\.npy is altered \(bytes {PAGE} to {2 * PAGE} .*delete the folder {copy} "):
            offsets.between(int(OFFSETS[10_000]), int(OFFSETS[10_001]))


@pytest.mark.parametrize("name", ["pages.npy", "fences.npy"])
def test_the_tables_are_checked_at_opening(folder, tmp_path, name):
    copy = damaged(folder, tmp_path, f"train/{name}", -3)
    with refused(rf"{name} is altered"):
        open_shards(copy)


def test_offsets_that_descend_are_refused_though_their_sums_are_right(folder, tmp_path):
    wrong = OFFSETS.copy()
    wrong[[20_000, 20_001]] = wrong[[20_001, 20_000]]
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(copy / "train")
    writer = SplitWriter(copy, "train", "uint16", 7_000)
    for number, length in enumerate(LENGTHS.tolist()):
        writer.add(np.full(length, number % 50_000), length)
    writer._offsets[:] = type(writer._offsets)("q", wrong.tolist())
    manifest = read_manifest(folder)
    write_manifest(copy, manifest | {"files": manifest["files"] | writer.finish()})
    with refused(r"at odds with train/offsets\.npy"):
        open_shards(copy)


def test_a_folder_without_tables_is_read_as_before(folder, tmp_path):
    """What an earlier version wrote: nothing is built again, and a run continues."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    manifest = read_manifest(folder)
    for name in list(manifest["files"]):
        if Path(name).name in ("pages.npy", "fences.npy"):
            (copy / name).unlink()
            del manifest["files"][name]
    write_manifest(copy, manifest)
    old, new = open_shards(copy), open_shards(folder)
    assert np.array_equal(np.asarray(old.train.offsets), OFFSETS)
    assert old.train.offsets.between(70, 80).tolist() == new.train.offsets.between(70, 80).tolist()
    assert fingerprint_of(byte_tokenizer(), {"s": old}, []) == fingerprint_of(byte_tokenizer(), {"s": new}, [])
    (copy / "train" / "offsets.npy").write_bytes((copy / "train" / "offsets.npy").read_bytes()[:-1] + b"\1")
    with refused(r"offsets\.npy is altered \(its sha256"):
        open_shards(copy)


def descriptors(folder):
    paths = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    return sum(path.startswith(str(folder / "train" / "tokens")) for path in paths)


def test_few_files_are_open_whatever_their_number(folder, tmp_path, monkeypatch):
    folder = shutil.copytree(folder, tmp_path / "copy")  # nobody else has its files open
    monkeypatch.setattr(shards, "OPEN", OpenFiles(3))
    stream = TokenStream(folder, "train", read_manifest(folder))
    assert descriptors(folder) == 0  # none before it is read
    whole = stream.read(0, stream.tokens)
    assert descriptors(folder) == 3 and np.array_equal(whole, np.repeat(np.arange(30_000), LENGTHS))
    copied = pickle.loads(pickle.dumps(stream))  # as to another process
    assert np.array_equal(copied.read(100, 20_000), whole[100:20_000])
    del stream, copied
    gc.collect()
    assert descriptors(folder) == 0 and len(shards.OPEN) == 0


def test_the_file_that_is_closed_is_the_least_recently_used():
    files, made = OpenFiles(2), []
    owner = files.register(made_for := OpenFiles(1))
    for number in (0, 1, 0, 2, 0, 1):
        assert files.get(owner, number, lambda number=number: (made.append(number), number + 1)[1]) == number + 1
    assert made == [0, 1, 2, 1] and len(files) == 2  # 1 made room for 2; 0 never left
    del made_for
    assert len(files) == 0


def test_the_manifest_names_the_tables(folder):
    files = json.loads((folder / "manifest.json").read_text())["files"]
    assert {"train/pages.npy", "train/fences.npy"} <= set(files)
    assert files["train/pages.npy"]["bytes"] - 128 == 4 * (4 + 2 + 1) and files["train/fences.npy"]["bytes"] == 128 + 32
