"""A store in memory, as a file system of fsspec, that fails as it is told."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem
import pytest

from k2jax.files.objects import object_address, store_client
from k2jax.files.objects.attempts import RetryRule
from k2jax.files.objects.store_client import COUNTS, StoreCounts

SCHEME = "fake"
QUICK = RetryRule(attempts=8, first=0.001, longest=0.002)


class FakeStore(MemoryFileSystem):
    """Objects by bucket and key; each call takes the next of the planned failures.

    Attributes:
        asked: calls so far, as ``method place start end``.
        failures: of the next calls: an exception, a number of bytes to leave out, a place to flip, or None.
        seconds: that each call takes.
    """

    protocol = SCHEME
    cachable = False
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    asked: ClassVar[list[str]] = []
    failures: ClassVar[list] = []
    seconds = 0.0
    lock = threading.Lock()
    now = together = 0

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix(f"{SCHEME}://").strip("/")

    def _call(self, name, place, answer, *extent):
        kind = type(self)
        with kind.lock:
            kind.asked.append(" ".join(map(str, (name, place.strip("/"), *extent))))
            failure = kind.failures.pop(0) if kind.failures else None
            kind.now += 1
            kind.together = max(kind.together, kind.now)
        try:
            time.sleep(kind.seconds)
            if isinstance(failure, BaseException):
                raise failure
            data = answer()
            if isinstance(failure, int) and isinstance(data, bytes):
                return data[:-failure] if failure > 0 else bytes([data[0] ^ 1]) + data[1:]
            return data
        finally:
            with kind.lock:
                kind.now -= 1

    def cat_file(self, path, start=None, end=None, **options):
        def answer():
            content = bytes(self.store[self._strip_protocol(path)].getvalue())
            return content[start:end]

        return self._call("read", path, lambda: self._named(path, answer), start, end)

    def info(self, path, **options):
        return self._call("info", path, lambda: self._named(path, lambda: super(FakeStore, self).info(path)))

    def find(self, path, **options):
        def answer():
            found = super(FakeStore, self).find(path, **options)
            return {name.strip("/"): info | super(FakeStore, self).info(name) for name, info in found.items()}

        return self._call("list", path, answer)

    def put_file(self, local, path, **options):
        with open(local, "rb") as file:
            content = file.read()
        self._call("write", path, lambda: self._put(path, content))

    def pipe_file(self, path, value, **options):
        self._call("write", path, lambda: self._put(path, value))

    def rm_file(self, path):
        self._call("remove", path, lambda: self._named(path, lambda: super(FakeStore, self).rm_file(path)))

    def _put(self, path, content):
        super().pipe_file(path, content)

    def _named(self, path, answer):
        try:
            return answer()
        except KeyError:
            raise FileNotFoundError(path) from None


def put(path: str, content: bytes) -> str:
    """Puts an object into the store; returns its URL."""
    FakeStore()._put(path, content)
    return f"{SCHEME}://{path}"


@pytest.fixture
def store(monkeypatch, tmp_path):
    """The class of the empty store, which this process reads by way of a disk tier of its own."""
    fsspec.register_implementation(SCHEME, FakeStore, clobber=True)
    monkeypatch.setitem(object_address.EXTRAS, SCHEME, ("nothing", "none"))
    monkeypatch.setattr(store_client, "RULE", QUICK)
    monkeypatch.setenv("K2JAX_STORE_CACHE", str(tmp_path / "tier"))
    for name, value in (("store", {}), ("pseudo_dirs", [""]), ("asked", []), ("failures", [])):
        monkeypatch.setattr(FakeStore, name, value)
    FakeStore.seconds, FakeStore.together = 0.0, 0
    COUNTS.__dict__.update(vars(StoreCounts()))
    store_client._client.cache_clear()
    yield FakeStore
    store_client._client.cache_clear()
