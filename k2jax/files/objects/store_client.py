"""Requests to a store: bounded in number and rate, counted, and repeated where they fail.

The clients' own repetitions are switched off where they can be (s3fs), so that each request is one and is counted.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import dataclasses
import functools
import os
from pathlib import Path
import threading
import time
from typing import Any, NamedTuple

from k2jax.errors import UserError
from k2jax.files.objects.attempts import ChangedObjectError, Result, RetryRule, ShortAnswerError, repeated
from k2jax.files.objects.host_settings import host_settings
from k2jax.files.objects.object_address import EXTRAS

SECONDS = 30.0
"""Longest time without an answer of the store [s]."""
PER_LISTING = 1000
"""Names that an answer of a store holds, by which the requests of a listing are counted."""
RULE = RetryRule()
PART = 64 * 2**20
"""Larger files are written in parts of this size, one after another [bytes]."""
_IN_PARTS = {"s3": {"chunksize": PART, "max_concurrency": 1}}


class ObjectInfo(NamedTuple):
    """What a store says of an object.

    Attributes:
        size: of its content [bytes].
        version: changes with the content: its ETag, or when it was written.
    """

    size: int
    version: str


@dataclasses.dataclass
class StoreCounts:
    """What the requests of this process came to.

    Attributes:
        requests: that were made, repetitions included.
        repeated: that failed and were made again.
        bytes: that were read.
        written: bytes that were written.
        together: most requests at a time.
    """

    requests: int = 0
    repeated: int = 0
    bytes: int = 0
    written: int = 0
    together: int = 0

    def words(self) -> str:
        """One line for a console."""
        again = f", {self.repeated:,} of them again" if self.repeated else ""
        return f"{self.requests:,} requests to the store{again}; {self.bytes:,} bytes read, {self.written:,} written"


COUNTS = StoreCounts()


class StoreClient:
    """Requests to the stores of one scheme; ``store_client`` keeps one for each."""

    def __init__(self, scheme: str):
        """Opens the client of the scheme.

        Raises:
            UserError: its package is not installed.
        """
        self._scheme, self._limits = scheme, host_settings()
        self._files = _file_system(scheme)
        self._slots = threading.Semaphore(self._limits.requests)
        self._lock, self._next, self._busy = threading.Lock(), 0.0, 0

    def read(
        self,
        place: str,
        start: int,
        stop: int,
        *,
        version: str = "",
        rule: RetryRule | None = None,
    ) -> bytes:
        """Bytes ``start`` to ``stop`` of an object.

        Args:
            place: bucket and key.
            start: first byte.
            stop: end, inside of the object.
            version: of ``info``; empty where the reader compares checksums.
            rule: of repetitions, by default ``RULE``.

        Raises:
            FileNotFoundError: there is no such object.
            UserError: the store failed for too long, or the object is another version.
        """

        def ask() -> bytes:
            data = bytes(self._range(place, start, stop, version))
            if len(data) != stop - start:
                raise ShortAnswerError(f"{len(data):,} bytes instead of {stop - start:,}")
            return data

        data = self._ask(ask, place, rule or RULE)
        with self._lock:
            COUNTS.bytes += len(data)
        return data

    def read_all(self, place: str, most: int | None = None) -> bytes:
        """A whole object of any length, or its first ``most`` bytes; errors as of ``read``."""
        limits = {} if most is None else {"start": 0, "end": most}
        data = bytes(self._ask(lambda: self._files.cat_file(place, **limits), place, RULE))
        with self._lock:
            COUNTS.bytes += len(data)
        return data

    def info(self, place: str) -> ObjectInfo:
        """Size and version of an object; errors as of ``read``."""
        return _info(self._ask(lambda: self._object(place), place, RULE))

    def listing(self, place: str) -> dict[str, ObjectInfo]:
        """All objects whose keys begin with a folder's, by bucket and key; none where there is no such folder."""
        found = self._ask(lambda: self._files.find(place, detail=True), place, RULE)
        with self._lock:
            COUNTS.requests += len(found) // PER_LISTING  # the first is counted as all requests are
        return {name: _info(each) for name, each in sorted(found.items()) if each["type"] == "file"}

    def write(self, place: str, path: Path) -> None:
        """Writes a local file as an object, which appears whole or not at all; errors as of ``read``."""
        size = path.stat().st_size
        self._ask(lambda: self._files.put_file(str(path), place, **_IN_PARTS.get(self._scheme, {})), place, RULE)
        with self._lock:
            COUNTS.written += size
            COUNTS.requests += size // PART

    def write_bytes(self, place: str, content: bytes) -> None:
        """Writes an object; errors as of ``read``."""
        self._ask(lambda: self._files.pipe_file(place, content), place, RULE)
        COUNTS.written += len(content)

    def remove(self, place: str) -> None:
        """Removes an object, if there is one; errors as of ``read``."""
        with contextlib.suppress(FileNotFoundError):
            self._ask(lambda: self._files.rm_file(place), place, RULE)

    def _object(self, place: str) -> dict[str, Any]:
        found = self._files.info(place)
        if found["type"] != "file":
            raise FileNotFoundError(place)
        return found

    def _range(self, place: str, start: int, stop: int, version: str) -> bytes:
        if version and self._scheme == "s3":
            return _s3_range(self._files, place, start, stop, version)
        data = self._files.cat_file(place, start=start, end=stop)
        if version and _info(self._object(place)).version != version:
            raise ChangedObjectError("it was written again while it was read")
        return data

    def _ask(self, call: Callable[[], Result], place: str, rule: RetryRule) -> Result:
        return repeated(lambda: self._bounded(call), f"{self._scheme}://{place}", rule, self._count_failure)

    def _bounded(self, call: Callable[[], Result]) -> Result:
        with self._slots:
            with self._lock:
                now = time.monotonic()
                self._next = max(self._next, now) + 1 / self._limits.per_second
                wait = self._next - 1 / self._limits.per_second - now
                self._busy += 1
                COUNTS.requests, COUNTS.together = COUNTS.requests + 1, max(COUNTS.together, self._busy)
            try:
                time.sleep(wait)
                return call()
            finally:
                with self._lock:
                    self._busy -= 1

    def _count_failure(self) -> None:
        with self._lock:
            COUNTS.repeated += 1


def store_client(scheme: str) -> StoreClient:
    """The client of a scheme in this process; errors as of ``StoreClient``."""
    return _client(scheme, os.getpid())  # another after a fork, whose threads and connections are not inherited


@functools.cache
def _client(scheme: str, process: int) -> StoreClient:
    return StoreClient(scheme)


def _file_system(scheme: str) -> Any:
    package, extra = EXTRAS[scheme]
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    if scheme == "s3":
        # Without its own repetitions, one request of ours is one request of HTTP.
        timeouts = {"connect_timeout": SECONDS, "read_timeout": SECONDS}
        pool = {"max_pool_connections": max(10, host_settings().requests)}
        options["max_concurrency"] = 1  # our callers' threads are what runs at a time
        options["config_kwargs"] = timeouts | pool | {"retries": {"total_max_attempts": 1, "mode": "standard"}}
    try:
        import fsspec

        files = fsspec.filesystem(scheme, **options)
    except ImportError:
        raise UserError(f'{scheme}:// needs {package}, which is not installed: pip install "{extra}"') from None
    if scheme == "s3":
        files.retries = 1
    return files


def _info(found: dict[str, Any]) -> ObjectInfo:
    for key in ("ETag", "etag", "generation", "LastModified", "updated", "mtime", "created"):
        if found.get(key):
            return ObjectInfo(int(found["size"]), str(found[key]).strip('"'))
    return ObjectInfo(int(found["size"]), "")


def _s3_range(files: Any, place: str, start: int, stop: int, version: str) -> bytes:
    """A range of an object of S3, if it still is of that version: asked for in one request."""
    import fsspec.asyn

    bucket, key, _ = files.split_path(place)

    async def ask() -> bytes:
        answer = await files._call_s3(
            "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", IfMatch=f'"{version}"'
        )
        async with answer["Body"] as body:
            return await body.read()

    try:
        return fsspec.asyn.sync(files.loop, ask)
    except OSError as error:
        code = getattr(error.__cause__, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode")
        if code == 412:
            raise ChangedObjectError("it was written again while it was read") from None
        raise
