"""Append-only logs: what has been appended survives the death of the process, a full disk and the next process.

A record is handed to the operating system before ``append`` returns. A process that is killed while it writes leaves
an incomplete last record: readers leave it out, and the next writer cuts it off before it writes. A write that fails,
as on a full disk, is cut off at once, or else before the next record, which is refused for as long as that fails.
Anything else that is not as it was written is a UserError with the file and the place.

What a record looks like is the matter of a codec, of which each kind of log has its own. Every record has a checksum,
except where a user's programs read the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import fcntl
import io
import json
import os
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar
import zlib

from k2jax.errors import UserError
from k2jax.files.atomic import name_file, naming

Record = TypeVar("Record")
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class DamagedRecordError(Exception):
    """A record is not as it was written: the reason, as a clause."""


class Codec(Generic[Record]):
    """The records of one kind of log as bytes.

    Attributes:
        header: with which a file begins.
        remedy: what to do about a damaged file.
    """

    header = b""
    remedy = "restore or delete the file"

    def encode(self, record: Record, index: int) -> bytes:
        """The bytes of the record ``index`` of a file."""
        raise NotImplementedError

    def decode(self, file: BinaryIO, index: int) -> Record | None:
        """Reads the record ``index``, which begins where the file stands; None where the file ends within it.

        Raises:
            DamagedRecordError: it is not as it was written.
        """
        raise NotImplementedError

    def read_header(self, file: BinaryIO) -> bool:
        """Reads the header; False where the file ends within it.

        Raises:
            DamagedRecordError: the file begins otherwise.
        """
        data = file.read(len(self.header))
        if not self.header.startswith(data):
            raise DamagedRecordError("it is no file of this kind")
        return len(data) == len(self.header)

    def check_count(self, count: int) -> None:
        """Raises DamagedRecordError where a file of ``count`` whole records cannot be all that was written at once."""


class Lines(Codec[Any]):
    """Lines without a checksum, as bytes with their newlines."""

    def encode(self, record: Any, index: int) -> bytes:
        """The line itself."""
        return record

    def decode(self, file: BinaryIO, index: int) -> Any:
        """Reads a line; None where it has no end."""
        line = file.readline()
        return self.parse(line, index) if line.endswith(b"\n") else None

    def parse(self, line: bytes, index: int) -> Any:
        """The record of a whole line.

        Raises:
            DamagedRecordError: it is damaged.
        """
        return line


class ChecksummedLines(Lines):
    """JSON objects, one a line behind the CRC-32 of its text."""

    def encode(self, record: Any, index: int) -> bytes:
        """The line; ValueError for what is not JSON."""
        text = json.dumps(record, allow_nan=False, separators=(",", ":")).encode()
        return b"%08x %s\n" % (zlib.crc32(text), text)

    def parse(self, line: bytes, index: int) -> Any:
        """The object of a line."""
        checksum, _, text = line[:-1].partition(b" ")
        if checksum != b"%08x" % zlib.crc32(text):
            raise DamagedRecordError(f"line {index + 1} does not have its checksum")
        return json.loads(text)


def _ignore(record: Any) -> None:
    pass


class AppendLog(Generic[Record]):
    """The writer of a log. One writes a file at a time, any number read it.

    Args:
        path: of the file; it and its folder are made with the first record.
        codec: of its records.
        held: whether the file stays open and locked between records, and ``close`` waits for the disk; otherwise it is
            opened for each record, for users with more logs than a process may have open files.
        report: receives one line about an incomplete last record that an earlier process has left.
        mode: permissions of a new file, less the process's mask.
    """

    def __init__(
        self,
        path: Path,
        codec: Codec[Record],
        *,
        held: bool = True,
        report: Callable[[str], None] | None = None,
        mode: int = 0o666,
    ):
        self._path, self._codec, self._held, self._report, self._mode = path, codec, held, report, mode
        self._file: io.FileIO | None = None
        self._end = self._count = 0  # of the whole records that are known
        self._is_torn = False  # whether something of a write that failed may stand behind them

    def open(self, receive: Callable[[Record], object] = _ignore) -> None:
        """Opens and locks a file that has not been opened yet, hands over its records, and cuts off a torn end.

        Raises:
            UserError: the file is damaged, or another process writes it.
            OSError: it cannot be opened or written.
        """
        with naming(self._path):
            self._make_ready(receive)

    def append(self, record: Record) -> int:
        """Adds a record; once this returns, no death of the process loses it.

        Returns:
            The offset of the record in the file.

        Raises:
            OSError: it could not be written; readers find the log as it was.
            UserError: the file is damaged, or another process writes it.
        """
        try:
            self._make_ready(_ignore)
            return self._append(record)
        except OSError as error:
            name_file(error, self._path)
            raise
        finally:
            if not self._held:
                self._release()

    def sync(self) -> None:
        """Waits until what was appended is on the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Waits until what was appended is on the disk, and lets another process write."""
        with naming(self._path):
            try:
                self.sync()
            finally:
                self._release()

    def _append(self, record: Record) -> int:
        begin, data = self._end, self._codec.encode(record, self._count)
        try:
            self._write(data)
        except BaseException:
            self._is_torn = True
            with contextlib.suppress(OSError):  # the next record is refused until it can be cut off
                self._cut()
            raise
        self._end, self._count = begin + len(data), self._count + 1
        return begin

    def _make_ready(self, receive: Callable[[Record], object]) -> None:
        """Sees to it that the file is open and ends with a whole record."""
        if self._file is None:
            self._lock()
        elif self._end and not self._is_torn:
            return
        try:
            if self._is_torn:
                self._cut()
            if not self._end or os.fstat(self._file.fileno()).st_size != self._end:
                self._recover(receive)
        except BaseException:
            self._release()
            raise

    def _lock(self) -> None:
        try:
            descriptor = os.open(self._path, _FLAGS, self._mode)
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, _FLAGS, self._mode)
        self._file = io.FileIO(descriptor, "r+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._release()
            raise UserError(f"{self._path} is being written by another process; stop it first") from None

    def _recover(self, receive: Callable[[Record], object]) -> None:
        scan = _Scan(self._path, self._codec, self._report)
        for record in scan:
            receive(record)
        self._end, self._count = scan.end, scan.count
        if os.fstat(self._file.fileno()).st_size > self._end:
            self._cut()
        if not self._end:
            self._write(self._codec.header)
            self._end = len(self._codec.header)

    def _write(self, data: bytes) -> None:
        written = os.write(self._file.fileno(), data)
        while written < len(data):
            written += os.write(self._file.fileno(), memoryview(data)[written:])

    def _cut(self) -> None:
        os.ftruncate(self._file.fileno(), self._end)
        self._is_torn = False

    def _release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_log(path: Path, codec: Codec[Record], report: Callable[[str], None] | None = None) -> Iterator[Record]:
    """The whole records of a file in order, one at a time in memory, also while another process writes it.

    Args:
        path: of the file, which exists.
        codec: of its records.
        report: receives one line about an incomplete last record, which is left out.

    Raises:
        UserError: while iterating: the file is damaged.
    """
    return iter(_Scan(path, codec, report))


class _Scan(Generic[Record]):
    """Reads a file once, and knows how many whole records it has found and where the last of them ends."""

    def __init__(self, path: Path, codec: Codec[Record], report: Callable[[str], None] | None):
        self._path, self._codec, self._report = path, codec, report
        self.end = self.count = 0

    def __iter__(self) -> Iterator[Record]:
        with open(self._path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            try:
                yield from self._records(file, size)
                self._codec.check_count(self.count)
            except DamagedRecordError as error:
                raise damaged(self._path, self.end, error, self._codec.remedy) from None
        if self.end < size and self._report is not None:
            where = f"the last record, at byte {self.end:,},"
            self._report(f"{self._path}: {where} is incomplete and left out (its writer was killed)")

    def _records(self, file: BinaryIO, size: int) -> Iterator[Record]:
        if not self._codec.read_header(file):
            return
        self.end = file.tell()
        while self.end < size and (record := self._codec.decode(file, self.count)) is not None:
            self.end, self.count = file.tell(), self.count + 1
            yield record


def damaged(path: Path, offset: int, reason: object, remedy: str = Codec.remedy) -> UserError:
    """What is said of a file with a damaged record."""
    return UserError(f"{path} is damaged at byte {offset:,}: {reason}; {remedy}")
