import itertools
import os
from pathlib import Path
import zlib

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.data import blocks
from k2jax.data.blocks import BLOCK, BlockFile, BlockSums, block_count
from k2jax.errors import UserError
from tests.refusal import refused

CONTENT = np.random.default_rng(0).bytes(3 * BLOCK + 777)
SUMS = np.array([zlib.crc32(CONTENT[start : start + BLOCK]) for start in range(0, len(CONTENT), BLOCK)], np.uint32)


def opened(folder, content=CONTENT):
    """The file with this content, which should have been ``CONTENT``."""
    (folder / "file").write_bytes(content)
    return BlockFile(folder / "file", len(CONTENT), SUMS, folder)


def flipped(at):
    return CONTENT[:at] + bytes([CONTENT[at] ^ 4]) + CONTENT[at + 1 :]


@given(st.lists(st.integers(0, len(CONTENT)), max_size=9))
def test_the_sums_do_not_depend_on_how_a_file_is_cut_into_pieces(cuts):
    sums, edges = BlockSums(), [0, *sorted(cuts), len(CONTENT)]
    for start, stop in itertools.pairwise(edges):
        sums.add(CONTENT[start:stop])
    assert list(sums.values) == SUMS.tolist()
    assert [block_count(size) for size in (0, 1, BLOCK, BLOCK + 1)] == [0, 1, 1, 2]


@given(st.integers(0, len(CONTENT) - 1), st.sets(st.integers(0, len(CONTENT)), min_size=2, max_size=2).map(sorted))
def test_a_range_is_refused_if_a_block_that_it_touches_is_altered(tmp_path_factory, at, ends):
    folder = tmp_path_factory.mktemp("x")
    file, (start, stop) = opened(folder, flipped(at)), ends
    if not start // BLOCK <= at // BLOCK <= (stop - 1) // BLOCK:
        assert file.read(start, stop) == CONTENT[start:stop]
        return
    first = at // BLOCK * BLOCK
    for _ in range(2):  # a refused block is not taken for a checked one
        with pytest.raises(UserError, match=f"altered .bytes {first} to {min(first + BLOCK, len(CONTENT))} ") as error:
            file.read(start, stop)
    assert str(folder / "file") in str(error.value) and f"delete the folder {folder} " in str(error.value)


def test_a_file_that_is_truncated_while_it_is_open_is_refused(tmp_path):
    """A mapped file would end the process with SIGBUS."""
    file = opened(tmp_path)
    file.read(0, 10)
    os.truncate(tmp_path / "file", 2 * BLOCK + 5)
    assert file.read(0, BLOCK) == CONTENT[:BLOCK]
    for start in (2 * BLOCK, 3 * BLOCK):
        with refused(f"truncated since it was opened, when it had {len(CONTENT)} bytes"):
            file.read(start, start + 9)
    os.truncate(tmp_path / "file", 0)
    with refused("truncated since"):
        file.read(5, 10)  # of a block that was checked


def test_a_file_that_is_deleted_while_it_is_open_reads_on(tmp_path):
    file = opened(tmp_path)
    (tmp_path / "file").unlink()
    assert file.read(0, len(CONTENT)) == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", b""])
def test_the_length_is_checked_at_opening(tmp_path, content):
    with refused(f"{len(content)} bytes long instead of {len(CONTENT)}"):
        opened(tmp_path, content)


def test_a_disk_that_fails_is_one_line(tmp_path, monkeypatch):
    file = opened(tmp_path)

    def fail(*args):
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(os, "pread", fail)
    with refused(r"file cannot be read \(Input/output error\): if the file itself is damaged"):
        file.read(0, 1)
    monkeypatch.setattr(os, "open", fail)
    with refused(r"cannot be read \(Input/output error\)"):
        opened(tmp_path)


def test_a_whole_file_is_checked_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "READ_AT_ONCE", 2 * BLOCK)
    opened(tmp_path).check()
    for at in (0, 2 * BLOCK, len(CONTENT) - 1):
        with refused("altered"):
            opened(tmp_path, flipped(at)).check()


def test_files_are_closed_with_their_readers(tmp_path):
    def descriptors():
        paths = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return sum(os.path.realpath(path) == str(tmp_path / "file") for path in paths)

    readers = [opened(tmp_path) for _ in range(20)]
    assert descriptors() == 20
    del readers
    assert descriptors() == 0


def test_a_block_is_hashed_once(tmp_path, monkeypatch):
    file, crc32, hashed = opened(tmp_path), zlib.crc32, []
    monkeypatch.setattr(zlib, "crc32", lambda data: (hashed.append(len(data)), crc32(data))[1])
    for start in (10, BLOCK - 1, 0, 3 * BLOCK):
        file.read(start, start + 5)
    assert hashed == [BLOCK, BLOCK, 777]
