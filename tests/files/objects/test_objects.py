"""Objects of a store: read right whatever the store does, within bounds, and without a request where they are kept."""

import concurrent.futures
import io
import os
import time

import pytest

from k2jax.files.objects import cached_reads
from k2jax.files.objects.cached_reads import forget_kept, read_kept
from k2jax.files.objects.host_settings import host_settings
from k2jax.files.objects.object_path import ObjectPath, parse_place
from k2jax.files.objects.object_reader import ObjectBytes
from k2jax.files.objects.store_client import COUNTS, store_client
from tests.files.objects.fake_store import SCHEME, put
from tests.refusal import refused

CONTENT = os.urandom(10_000)


@pytest.fixture
def small(monkeypatch, store):
    """Chunks of a kilobyte."""
    monkeypatch.setattr(cached_reads, "CHUNK", 1000)
    return store


def known(content=CONTENT):
    return ObjectPath.parse(put("b/f/k.bin", content)).known()


@pytest.mark.parametrize(
    "failures",
    [
        [],
        [OSError("503"), None, None, ConnectionResetError(), None, None, TimeoutError()] * 3,
        [7, 1, None, 999] * 5,
    ],
)
def test_the_content_is_right_or_refused_whatever_fails(small, failures):
    path = known()
    small.failures += failures
    assert path.read_bytes() == CONTENT
    asked = len(small.asked)
    assert path.read_bytes() == CONTENT
    assert len(small.asked) == asked, "a warm tier asks nobody"


def test_a_store_that_fails_for_too_long_is_one_line(small):
    path = known()
    small.failures += [OSError("Slow Down")] * 100
    with refused("fake://b/f/k.bin failed after 8 attempts in 0 s: OSError: 'Slow Down'"):
        path.read_bytes()


def test_an_object_that_changes_while_it_is_read_is_refused(small):
    path = known()
    with path.open() as file:
        file.raw.read(10)
        put("b/f/k.bin", CONTENT[::-1])
        file.raw.seek(5000)
        with refused("fake://b/f/k.bin failed: ChangedObjectError"):
            file.raw.read(10)
    assert ObjectPath.parse("fake://b/f/k.bin").read_bytes() == CONTENT[::-1]


def test_a_reader_is_a_file(small):
    path, real = known(), io.BytesIO(CONTENT)
    with path.open() as file:
        for step in ((0, 0), (5, 1), (-30, 2), (9_990, 0), (20_000, 0), (1500, 0)):
            assert file.seek(*step) == real.seek(*step)
            assert file.read(2100) == real.read(2100)
        with pytest.raises(ValueError, match="before the beginning"):
            file.raw.seek(-1)
    data = ObjectBytes(path)
    assert len(data) == 10_000 and [data[place] for place in (0, 9_999, 5)] == [CONTENT[p] for p in (0, 9_999, 5)]


def test_readers_in_order_are_served_ahead_and_others_are_not(small):
    path = known()
    with path.open() as file:
        file.raw.read(500)
        file.raw.seek(8000)
        file.raw.read(500)
    time.sleep(0.05)
    assert len([each for each in small.asked if each.startswith("read")]) == 2
    with path.open() as file:
        for _ in range(4):
            file.raw.read(1000)
    deadline = time.monotonic() + 5
    while len([each for each in small.asked if each.startswith("read")]) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len([each for each in small.asked if each.startswith("read")]) in (7, 8)


def test_requests_are_bounded_in_number_and_rate_and_counted(small, monkeypatch):
    monkeypatch.setenv("K2JAX_STORE_REQUESTS", "3")
    monkeypatch.setenv("K2JAX_STORE_REQUESTS_PER_SECOND", "80")
    small.seconds = 0.02
    put("b/k", CONTENT)
    client, began = store_client(SCHEME), time.monotonic()
    small.failures += [OSError("503")] * 4
    with concurrent.futures.ThreadPoolExecutor(12) as threads:
        pieces = list(threads.map(lambda at: client.read("b/k", at, at + 100), range(0, 2000, 100)))
    assert b"".join(pieces) == CONTENT[:2000]
    assert small.together <= 3 and COUNTS.together <= 3
    assert (COUNTS.requests, COUNTS.repeated, COUNTS.bytes) == (24, 4, 2000)
    assert time.monotonic() - began >= 23 / 80
    assert COUNTS.words() == "24 requests to the store, 4 of them again; 2,000 bytes read, 0 written"


def test_listings_and_writes(store, tmp_path):
    put("b/f/a/x.txt", b"1"), put("b/f/y.txt", b"22"), put("b/g", b"")
    folder = ObjectPath.parse("fake://b/f/")
    assert [(str(path), path.size) for path in folder.below()] == [("fake://b/f/a/x.txt", 1), ("fake://b/f/y.txt", 2)]
    assert not (folder / "z").exists() and not folder.exists() and (folder / "y.txt").exists()
    (tmp_path / "new").write_bytes(b"new")
    store_client(SCHEME).write("b/f/z", tmp_path / "new")
    assert (folder / "z").read_bytes() == b"new"
    store_client(SCHEME).remove("b/f/z")
    store_client(SCHEME).remove("b/f/z")
    assert not (folder / "z").exists()


def test_what_never_changes_is_asked_for_once(store):
    path = ObjectPath.parse(put("b/manifest.json", b"{}"))
    assert [read_kept(path) for _ in range(3)] == [b"{}"] * 3 and len(store.asked) == 1
    forget_kept(path)
    assert read_kept(path) == b"{}" and len(store.asked) == 2
    with pytest.raises(FileNotFoundError):
        read_kept(ObjectPath.parse("fake://b/none"))


@pytest.mark.parametrize("url", ["fake://", "fake:///x", "fake://b//x", "fake://b/../x", "fake://b/x::fake://y",
                                 "fake://b/x\n", "other://b/x"])  # fmt: skip
def test_a_url_that_clients_may_read_otherwise_is_refused(store, url):
    with refused("names no bucket|has an empty segment"):
        ObjectPath.parse(url)


def test_places_are_paths_or_urls(store, tmp_path):
    assert parse_place(f"file://{tmp_path}/x") == tmp_path / "x" == parse_place(str(tmp_path / "x"))
    place = parse_place("fake://b/f/k.tar.gz")
    assert (place.name, place.suffix, str(place.parent), str(place / "x/y")) == (
        "k.tar.gz", ".gz", "fake://b/f", "fake://b/f/k.tar.gz/x/y")  # fmt: skip


@pytest.mark.parametrize("name", ["K2JAX_STORE_CACHE_GB", "K2JAX_STORE_REQUESTS", "K2JAX_STORE_REQUESTS_PER_SECOND"])
@pytest.mark.parametrize("value", ["0", "-1", "many", "nan", "inf"])
def test_a_setting_that_is_no_positive_number_is_refused(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with refused(f".{name} is '{value}'; give a positive number"):
        host_settings()


def test_a_package_that_is_missing_is_named(store, monkeypatch):
    monkeypatch.setattr("fsspec.filesystem", lambda *names, **options: (_ for _ in ()).throw(ImportError("s3fs")))
    with refused(r's3:// needs s3fs, which is not installed: pip install "k2jax\[s3\]"'):
        ObjectPath.parse("s3://b/k").read_bytes()
