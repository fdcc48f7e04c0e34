"""Chunks on the disk: read back right or fetched again, bounded, shared, and never half of one."""

import errno
import os
from pathlib import Path
import signal
import threading
import time

import pytest

from k2jax.files.objects import disk_tier
from k2jax.files.objects.disk_tier import BLOCK, ChunkKey, DiskTier
from tests.refusal import refused

KEY = ChunkKey("s3://b/k", "v", 0)
CONTENT = os.urandom(3 * BLOCK + 100)


def forbidden():
    raise AssertionError("nothing is fetched")


def files(folder):
    return [path for path in Path(folder, "chunks").rglob("*") if path.is_file()]


@pytest.mark.parametrize("extent", [(0, None), (0, 1), (BLOCK - 1, BLOCK + 1), (5, 3 * BLOCK + 100), (7, 7)])
def test_what_is_kept_is_read_back_by_any_extent(tmp_path, extent):
    tier, (start, stop) = DiskTier(tmp_path, 10**7), extent
    assert tier.read(KEY, start, stop, lambda: CONTENT) == CONTENT[start:stop]
    assert DiskTier(tmp_path, 10**7).read(KEY, start, stop, forbidden) == CONTENT[start:stop]
    assert tier.read(KEY._replace(version="w"), 0, None, lambda: b"") == b""
    assert tier.read(KEY._replace(version="w"), 0, None, forbidden) == b""


@pytest.mark.parametrize("place", [0, BLOCK + 3, 3 * BLOCK + 99, 3 * BLOCK + 101, -1, -10, -30, -48])
def test_an_altered_chunk_is_fetched_again(tmp_path, place):
    """In its content, its table of checksums, and its end."""
    tier = DiskTier(tmp_path, 10**7)
    tier.read(KEY, 0, None, lambda: CONTENT)
    [path] = files(tmp_path)
    data = bytearray(path.read_bytes())
    data[place] ^= 16
    path.write_bytes(data)
    fetched = []
    assert tier.read(KEY, 0, None, lambda: fetched.append(1) or CONTENT) == CONTENT
    assert fetched


@pytest.mark.parametrize("size", [0, 1, 50, 3 * BLOCK])
def test_a_chunk_that_is_cut_or_another_ones_is_fetched_again(tmp_path, size):
    tier, fetched = DiskTier(tmp_path, 10**7), []
    tier.read(KEY, 0, None, lambda: CONTENT)
    [path] = files(tmp_path)
    os.truncate(path, size)
    assert tier.read(KEY, 0, None, lambda: fetched.append(1) or CONTENT) == CONTENT
    other = KEY._replace(number=1)
    tier._path(other).parent.mkdir(parents=True, exist_ok=True)
    path.rename(tier._path(other))
    assert tier.read(other, 0, None, lambda: fetched.append(2) or b"other") == b"other"
    assert fetched == [1, 2]


def test_the_least_recently_used_chunks_make_room(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_tier, "_TOUCHED", -1.0)
    limit = 20 * (BLOCK + 100)
    tier = DiskTier(tmp_path, limit)
    keys = [KEY._replace(number=number) for number in range(40)]
    for number, key in enumerate(keys):
        tier.read(key, 0, None, lambda: CONTENT[:BLOCK])
        os.utime(tier._path(key), (number, number))
        os.utime(tier._path(keys[0]), (100, 100))  # is in use
        assert sum(path.stat().st_size for path in files(tmp_path)) <= limit
    assert tier.holds(keys[0]) and tier.holds(keys[-1]) and not tier.holds(keys[1])
    kept = [number for number, key in enumerate(keys) if tier.holds(key)]
    assert kept == [0, *range(kept[1], 40)] and len(kept) > 15


def test_a_wrong_sum_and_abandoned_files_are_found_when_room_is_made(tmp_path):
    limit = 20 * (BLOCK + 100)
    tier = DiskTier(tmp_path, limit)
    tier.read(KEY, 0, None, lambda: CONTENT[:BLOCK])
    (tmp_path / "locks/usage").write_text(f"{limit:020d}")  # of a process that was killed before it wrote
    abandoned = files(tmp_path)[0].with_name(".x.1-ab")
    abandoned.write_bytes(bytes(BLOCK))
    os.utime(abandoned, (0, 0))
    tier.read(KEY._replace(number=1), 0, None, lambda: CONTENT[:BLOCK])
    assert len(files(tmp_path)) == 2 and not abandoned.exists()
    assert int((tmp_path / "locks/usage").read_text()) == sum(path.stat().st_size for path in files(tmp_path))


def test_a_chunk_that_many_want_is_fetched_once(tmp_path):
    fetched, results = [], []

    def fetch():
        fetched.append(1)
        time.sleep(0.05)
        return CONTENT

    def read():
        results.append(DiskTier(tmp_path, 10**7).read(KEY, 1, 5, fetch))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1 and results == [CONTENT[1:5]] * 8


def test_a_process_that_is_killed_while_it_fills_leaves_nothing_that_is_read(tmp_path):
    started, go = os.pipe()
    child = os.fork()
    if not child:

        def slow():
            os.write(go, b"x")
            time.sleep(60)

        real, replaced = DiskTier(tmp_path, 10**7), disk_tier.os.replace
        disk_tier.os.replace = lambda *names: slow()
        try:
            real.read(KEY, 0, None, lambda: b"half")
        finally:
            disk_tier.os.replace = replaced
            os._exit(0)
    os.read(started, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(files(tmp_path)) == 1
    assert DiskTier(tmp_path, 10**7).read(KEY, 0, None, lambda: CONTENT) == CONTENT
    assert DiskTier(tmp_path, 10**7).read(KEY, 0, None, forbidden) == CONTENT


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    def full(*names):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk_tier.os, "replace", full)
    room = "make room, set .K2JAX_STORE_CACHE_GB lower, or .K2JAX_STORE_CACHE to a larger disk"
    with refused(f"{tmp_path}, which keeps what is read .* cannot be written: No space left on device; {room}"):
        DiskTier(tmp_path, 10**7).read(KEY, 0, None, lambda: CONTENT)
    assert not files(tmp_path)


def test_a_limit_below_ten_chunks_is_refused(tmp_path):
    with refused("a piece of .* bytes needs ten times its size"):
        DiskTier(tmp_path, 9 * BLOCK).read(KEY, 0, None, lambda: CONTENT[:BLOCK])


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with refused("cannot be written: Not a directory; set .K2JAX_STORE_CACHE"):
        DiskTier(tmp_path / "file", 10**7).read(KEY, 0, None, lambda: CONTENT)
