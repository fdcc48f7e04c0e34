"""Chunks of objects on this machine's disk: bounded, least recently used, checked at every read, shared by processes.

A chunk is written under a temporary name and renamed, so that a process that is killed leaves nothing that could be
read by mistake. It ends with a CRC-32 of each of its blocks and with the name of what it is: a read compares the blocks
that it takes. What a disk has altered is removed and fetched again. One process fetches a chunk, others wait for it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
import contextlib
import errno
import fcntl
import functools
import hashlib
import os
from pathlib import Path
import secrets
import struct
import threading
import time
from typing import NamedTuple
import weakref
import zlib

from k2jax.errors import UserError
from k2jax.files.objects.host_settings import FOLDER, GIGABYTES, host_settings

BLOCK = 16 * 2**10
"""Bytes that have a checksum of their own."""
_END = struct.Struct("<4s32sQI")  # mark, digest of the key, bytes of the content, CRC-32 of the table
_MARK = b"k2o1"
_TOUCHED = 60.0  # a chunk that is read is marked as used at most so often [s]
_ABANDONED = 600.0  # age of a temporary file that nobody finishes any more [s]
_MOST_OPEN = 64  # chunks that a process has open
_KEPT = 0.9  # of the limit, after chunks were removed


class ChunkKey(NamedTuple):
    """What a chunk is: a piece of one version of an object."""

    url: str
    version: str
    number: int

    @property
    def digest(self) -> bytes:
        """Its name on the disk."""
        return hashlib.sha256("\0".join((self.url, self.version, str(self.number))).encode()).digest()


class _Altered(Exception):
    """A chunk is not as it was written."""


class _OpenChunk:
    """A chunk's file, each block of which is compared with its checksum when it is first read."""

    def __init__(self, path: Path, key: ChunkKey):
        """Opens it; raises OSError, struct.error or _Altered."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor).atexit = False  # a thread may read until the very end
        size = os.fstat(self._descriptor).st_size
        end = os.pread(self._descriptor, _END.size, size - _END.size)
        mark, digest, self._length, of_table = _END.unpack(end)
        blocks = -(-self._length // BLOCK)
        if mark != _MARK or digest != key.digest or size != self._length + 4 * blocks + _END.size:
            raise _Altered
        table = os.pread(self._descriptor, 4 * blocks, self._length)
        if zlib.crc32(table) != of_table:
            raise _Altered
        self._sums, self._checked, self._touched = array("I", table), bytearray(blocks), 0.0

    def is_linked(self) -> bool:
        """Whether it is still in the folder, and was not removed to make room; it is marked as used now and then."""
        if time.time() - self._touched > _TOUCHED:
            os.utime(self._descriptor)
            self._touched = time.time()
        return os.fstat(self._descriptor).st_nlink > 0

    def read(self, start: int, stop: int | None) -> bytes:
        """Bytes of the content; raises OSError or _Altered."""
        stop = self._length if stop is None else stop
        if stop > self._length:
            raise _Altered
        first, last = start // BLOCK, -(-stop // BLOCK)
        if self._checked.find(0, first, last) < 0:
            return os.pread(self._descriptor, stop - start, start)
        begin = first * BLOCK
        data = os.pread(self._descriptor, min(last * BLOCK, self._length) - begin, begin)
        for block in range(first, last):
            at = block * BLOCK - begin
            if not self._checked[block] and zlib.crc32(data[at : at + BLOCK]) != self._sums[block]:
                raise _Altered
            self._checked[block] = True
        return data[start - begin : stop - begin]


class DiskTier:
    """A folder of chunks."""

    def __init__(self, folder: Path, limit: int):
        """A folder that takes at most ``limit`` bytes; it is made when it is first written."""
        self._folder, self._limit = folder, limit
        self._opened: OrderedDict[ChunkKey, _OpenChunk] = OrderedDict()
        self._lock_open = threading.Lock()

    def read(self, key: ChunkKey, start: int, stop: int | None, fetch: Callable[[], bytes]) -> bytes:
        """Bytes of a chunk, which is fetched where it is not there.

        Args:
            key: of the chunk.
            start: first byte.
            stop: end; None is that of the chunk.
            fetch: gets the whole chunk.

        Raises:
            UserError: the folder cannot be written, or has no room; or what ``fetch`` raises.
        """
        path = self._path(key)
        if (found := self._read(path, key, start, stop)) is not None:
            return found
        with self._held(key):
            if (found := self._read(path, key, start, stop)) is not None:
                return found
            content = fetch()
            with self._explained():
                self._write(path, key, content)
        return content[start:stop]

    def holds(self, key: ChunkKey) -> bool:
        """Whether a chunk is there."""
        return self._path(key).exists()

    def forget(self, key: ChunkKey) -> None:
        """Removes a chunk, if it is there: its content is not what it ought to be."""
        with self._lock_open:
            self._opened.pop(key, None)
        with contextlib.suppress(OSError):  # who fills it again says what is wrong with the folder
            self._path(key).unlink()

    def _path(self, key: ChunkKey) -> Path:
        name = key.digest.hex()
        return self._folder / "chunks" / name[:2] / name[2:40]

    def _read(self, path: Path, key: ChunkKey, start: int, stop: int | None) -> bytes | None:
        """The bytes, if the chunk is there and they are as they were written."""
        chunk = self._opened.get(key)
        try:
            if chunk is None or not chunk.is_linked():
                chunk = _OpenChunk(path, key)
                self._keep_open(key, chunk)
            return chunk.read(start, stop)
        except FileNotFoundError:
            return None
        except (OSError, struct.error, _Altered):  # a disk that fails, or has altered or cut the file
            self.forget(key)
            return None

    def _keep_open(self, key: ChunkKey, chunk: _OpenChunk) -> None:
        with self._lock_open:
            self._opened[key] = chunk
            while len(self._opened) > _MOST_OPEN:
                self._opened.popitem(last=False)

    @contextlib.contextmanager
    def _held(self, key: ChunkKey) -> Iterator[None]:
        """Keeps other threads and processes of this machine from fetching the chunk too; a death lets go of it."""
        with self._explained():
            descriptor = self._lock(f"{key.digest[0]:02x}")
        try:
            yield
        finally:
            os.close(descriptor)

    def _lock(self, name: str) -> int:
        folder = self._folder / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            room = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            remedy = f"make room, set ${GIGABYTES} lower, or ${FOLDER} to a larger disk" if room else f"set ${FOLDER}"
            raise UserError(
                f"{self._folder}, which keeps what is read from object stores, cannot be written: "
                f"{error.strerror}; {remedy}"
            ) from None

    def _write(self, path: Path, key: ChunkKey, content: bytes) -> None:
        sums = array("I", (zlib.crc32(content[at : at + BLOCK]) for at in range(0, len(content), BLOCK)))
        table = sums.tobytes()
        end = _END.pack(_MARK, key.digest, len(content), zlib.crc32(table))
        self._reserve(len(content) + len(table) + len(end))
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        try:
            with temporary.open("wb") as file:
                file.writelines((content, table, end))
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def _reserve(self, size: int) -> None:
        """Makes room for a chunk: the sum of all is a number in a file, counted anew whenever chunks are removed."""
        if size > self._limit * (1 - _KEPT):
            raise UserError(
                f"${GIGABYTES} is {self._limit / 1e9:g}, and a piece of {size:,} bytes needs ten times its size; "
                "set it higher"
            )
        descriptor = self._lock("usage")
        try:
            text = os.pread(descriptor, 20, 0)
            used = int(text) if len(text) == 20 and text.isdigit() else self._limit
            if used + size > self._limit:
                used = self._evict(int(self._limit * _KEPT) - size)
            os.pwrite(descriptor, b"%020d" % (used + size), 0)
        finally:
            os.close(descriptor)

    def _evict(self, most: int) -> int:
        """Removes the chunks that were longest not used until all take at most so many bytes; returns what is left."""
        files, now = [], time.time()
        for path in (self._folder / "chunks").glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                abandoned = path.name.startswith(".") and now - status.st_mtime > _ABANDONED
                files.append((0.0 if abandoned else status.st_mtime, str(path), status.st_size))
        used = sum(size for _, _, size in files)
        for used_at, path, size in sorted(files):
            if used <= most and used_at:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            used -= size
        return used


def disk_tier() -> DiskTier:
    """The tier of this machine's settings."""
    settings = host_settings()
    return _tier(settings.folder, settings.limit)


@functools.cache
def _tier(folder: Path, limit: int) -> DiskTier:
    return DiskTier(folder, limit)
