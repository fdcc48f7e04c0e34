"""Ranges of objects by way of the disk tier: whole chunks are fetched, and the next ones ahead of a reader in order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import contextlib
import functools
import os
import threading

from k2jax.errors import UserError
from k2jax.files.objects.attempts import ONCE, RetryRule
from k2jax.files.objects.disk_tier import ChunkKey, disk_tier
from k2jax.files.objects.object_address import ObjectAddress
from k2jax.files.objects.store_client import store_client

CHUNK = 4 * 2**20
"""Bytes of a request: 250 requests for a gigabyte, and a hundredth of a second of a store's bandwidth."""
AHEAD = 3
"""Chunks that are fetched ahead of a reader that takes them in order."""
_WHOLE = -1
"""Number of the chunk that is a small object as a whole."""


class CachedRanges:
    """The content of an object whose size and version are known. Several threads may read at once."""

    def __init__(self, path: ObjectAddress, *, pinned: bool = True):
        """Reads an object.

        Args:
            path: with its ``size`` and ``version``.
            pinned: the version is the store's own, which has to be the object's still; else its reader compares
                checksums.
        """
        self._path, self.size = path, path.size
        self._asked = path.version if pinned else ""
        self._last = -2

    def read(self, start: int, stop: int) -> bytes:
        """Bytes ``start`` to ``stop``.

        Raises:
            UserError: the store failed for too long, the object has changed, or the disk tier cannot be written.
            FileNotFoundError: the object is gone.
        """
        pieces = []
        for number in range(start // CHUNK, -(-stop // CHUNK)):
            begin = number * CHUNK
            self._read_ahead(number)
            length = min(CHUNK, self.size - begin)
            first, last = max(start - begin, 0), min(stop - begin, length)
            pieces.append(disk_tier().read(self._key(number), first, last, functools.partial(self._fetch, number)))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def forget(self, start: int, stop: int) -> None:
        """Has the chunks with these bytes fetched again when they are next read."""
        for number in range(start // CHUNK, -(-stop // CHUNK)):
            disk_tier().forget(self._key(number))

    def fill(self, start: int, stop: int) -> int:
        """Fetches the chunks with these bytes that are neither there nor on their way, and returns how many these were.

        Nothing is repeated: what fails is asked for again by who needs it. Errors are those of ``read``.
        """
        fetched = 0
        for number in range(start // CHUNK, -(-stop // CHUNK)):
            key = self._key(number)
            if not disk_tier().holds(key) and _claim(key):
                try:
                    disk_tier().read(key, 0, 0, functools.partial(self._fetch, number, ONCE))
                finally:
                    _release(key)
                fetched += 1
        return fetched

    def _key(self, number: int) -> ChunkKey:
        return ChunkKey(str(self._path), self._path.version, number)

    def _fetch(self, number: int, rule: RetryRule | None = None) -> bytes:
        begin = number * CHUNK
        stop = min(begin + CHUNK, self.size)
        client = store_client(self._path.scheme)
        return client.read(self._path.place, begin, stop, version=self._asked, rule=rule)

    def _read_ahead(self, number: int) -> None:
        if number == self._last:
            return
        in_order, self._last = number == self._last + 1, number
        if not in_order:
            return
        for ahead in range(number + 1, min(number + 1 + AHEAD, -(-self.size // CHUNK))):
            if not disk_tier().holds(self._key(ahead)):
                _ahead(self._key(ahead), functools.partial(self._fetch, ahead, ONCE))


_PENDING: set[ChunkKey] = set()
_LOCK = threading.Lock()


def _claim(key: ChunkKey) -> bool:
    """Whether nobody else of this process fetches a chunk ahead; then it is the caller's."""
    with _LOCK:
        mine = key not in _PENDING
        _PENDING.add(key)
    return mine


def _release(key: ChunkKey) -> None:
    with _LOCK:
        _PENDING.discard(key)


def _ahead(key: ChunkKey, fetch: functools.partial[bytes]) -> None:
    """Fetches a chunk in another thread, without repetition: what fails is asked for again by who needs it."""
    if not _claim(key):
        return

    def work() -> None:
        with contextlib.suppress(UserError, FileNotFoundError):
            disk_tier().read(key, 0, 0, fetch)
        _release(key)

    _threads(os.getpid()).submit(work)


@functools.cache
def _threads(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(AHEAD, thread_name_prefix="read-ahead")


def read_kept(path: ObjectAddress, most: int | None = None) -> bytes:
    """A small object that never changes once it is written, from the disk tier without a request where it is there.

    Args:
        path: of it.
        most: bytes that are read and kept of a longer one; None is all.

    Raises:
        FileNotFoundError: there is none.
        UserError: as of ``CachedRanges.read``.
    """
    client = store_client(path.scheme)
    return disk_tier().read(_kept(path), 0, None, lambda: client.read_all(path.place, most))


def forget_kept(path: ObjectAddress) -> None:
    """Has a small object fetched again when it is next read."""
    disk_tier().forget(_kept(path))


def _kept(path: ObjectAddress) -> ChunkKey:
    return ChunkKey(str(path), "", _WHOLE)
