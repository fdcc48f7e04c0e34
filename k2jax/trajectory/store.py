"""Trajectories on disk: one append-only file per iteration, every record with a checksum, none of them unpickled.

A file ``STEP.k2t`` is a header and records. The header has a magic number, the format, the step, the number of records
that the file was created with, and a CRC-32 of these. A record has a magic number, its index, the lengths of its body
as stored and as decompressed, a 128-bit BLAKE2b digest of the stored body and a CRC-32 of all that, and then the body:
an encoded trajectory (``encoding.py``) compressed by zlib. All numbers are little-endian.

A process that is killed while it appends leaves an incomplete last record. It is reported and left out by readers and
cut off by the next append. Anything else that is not as it was written is a UserError with the file and the offset.

``write`` replaces an iteration's file by one rename after an fsync of the file, and then syncs the folder: it survives
a power failure. ``append`` hands each record to the operating system with one call: it survives the death of the
process at once, and a power failure from the next ``sync`` on, which ``close`` and the first append of another step
imply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import contextlib
import fcntl
import hashlib
import os
from pathlib import Path
import struct
import sys
from typing import BinaryIO
import zlib

from k2jax.errors import UserError
from k2jax.report.files import write_atomic
from k2jax.trajectory.encoding import LARGEST, EncodingError, decode, encode
from k2jax.trajectory.types import Trajectory

FOLDER = "trajectories"
"""Name of the store in a workdir."""
SUFFIX = ".k2t"
FORMAT = 1
_FILE_MAGIC, _RECORD_MAGIC = b"k2jaxtrj", b"k2tr"
_FILE = struct.Struct("<8sIQQI")  # magic, format, step, records at creation, CRC-32 of these
_RECORD = struct.Struct("<4sQQQ16sI")  # magic, index, stored bytes, decompressed bytes, digest, CRC-32 of these
_CRC_BYTES = 4
_LEVEL = 1  # log-probabilities hardly compress; what does is compressed as well by the quickest level
_STALE = f".*{SUFFIX}.*.tmp"

Report = Callable[[str], None]
"""Receives one line about an incomplete last record."""


def _print_warning(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


class TrajectoryStore:
    """The trajectories of a run by iteration. One process writes, any number read.

    Args:
        folder: the folder of the files; created by the first write.
        keep: how many iterations stay, the newest; None keeps all.
        report: receives one line about each incomplete last record; prints it to stderr by default.
    """

    def __init__(self, folder: Path | str, keep: int | None = None, report: Report = _print_warning):
        if keep is not None and keep < 1:
            raise ValueError("a store keeps at least one iteration")
        self.folder = Path(folder)
        self._keep = keep
        self._report = report
        self._open: tuple[int, BinaryIO, int] | None = None  # step, file, index of its next record

    def path(self, step: int) -> Path:
        """The file of an iteration."""
        return self.folder / f"{int(step)}{SUFFIX}"

    def steps(self) -> list[int]:
        """The iterations that are stored, ascending."""
        names = (path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"*{SUFFIX}"))
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal() and str(int(name)) == name)

    def write(self, step: int, trajectories: Iterable[Trajectory]) -> Path:
        """Stores an iteration atomically, in place of what is stored of it, and drops the oldest beyond ``keep``.

        Args:
            step: number of the iteration.
            trajectories: all of its trajectories; one at a time is in memory.

        Returns:
            The path of the file.

        Raises:
            EncodingError: a trajectory cannot be stored; what was stored before stays.
        """
        self.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(step)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with _naming(path), open(temporary, "wb") as file:
                file.write(_file_header(step, 0))
                count = 0
                for trajectory in trajectories:
                    file.write(_record(count, trajectory))
                    count += 1
                file.seek(0)
                file.write(_file_header(step, count))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(self.folder)
        self._retain(step)
        return path

    def append(self, step: int, trajectory: Trajectory) -> int:
        """Adds a trajectory to an iteration; once this returns, no death of the process loses it.

        An incomplete last record of an earlier process is reported and cut off first.

        Returns:
            The offset of its record in the file, for ``read_trajectory``.

        Raises:
            EncodingError: the trajectory cannot be stored; the file is as before.
            UserError: the file is damaged, or another process appends to it.
        """
        if self._open is None or self._open[0] != step:
            self.close()
            self._open = self._open_for_appending(step)
        _, file, index = self._open
        data = _record(index, trajectory)
        end = file.seek(0, os.SEEK_END)
        with _naming(self.path(step)):
            try:
                _write_all(file, data)
            except BaseException:  # a full disk: the next record must not follow half a record
                file.truncate(end)
                raise
        self._open = step, file, index + 1
        return end

    def read(self, step: int) -> Iterator[Trajectory]:
        """The trajectories of an iteration in the order of writing, one at a time in memory.

        Raises:
            UserError: the iteration is not stored; while iterating: a record is damaged.
        """
        return read_trajectories(self.path(step), self._report)

    def discard(self, step: int) -> None:
        """Removes an iteration, for a resumed run that appends it from its start again."""
        if self._open is not None and self._open[0] == step:
            self.close()
        self.path(step).unlink(missing_ok=True)

    def sync(self) -> None:
        """Waits until what was appended is on the disk."""
        if self._open is not None:
            os.fsync(self._open[1].fileno())

    def close(self) -> None:
        """Syncs and closes the file that is appended to; the store remains usable."""
        if self._open is not None:
            self.sync()
            self._open[1].close()
            self._open = None

    def __enter__(self) -> TrajectoryStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open_for_appending(self, step: int) -> tuple[int, BinaryIO, int]:
        path = self.path(step)
        if not path.exists():
            write_atomic(path, _file_header(step, 0))
            self._retain(step)
        file = open(path, "r+b", buffering=0)  # noqa: SIM115 (closed by close)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ends = [end for _, end in _records(file, path, self._report)]
            file.truncate(ends[-1] if ends else _FILE.size)
        except BlockingIOError:
            file.close()
            raise UserError(f"{path} is being written by another process; stop it first") from None
        except BaseException:
            file.close()
            raise
        return step, file, len(ends)

    def _retain(self, step: int) -> None:
        """Removes the oldest iterations beyond ``keep``, never the one just written, and what killed writers left."""
        for path in self.folder.glob(_STALE):
            path.unlink(missing_ok=True)
        if self._keep is not None:
            for old in self.steps()[: -self._keep]:
                if old != step:
                    self.path(old).unlink(missing_ok=True)


def read_trajectories(path: Path | str, report: Report = _print_warning) -> Iterator[Trajectory]:
    """The trajectories of a file of a store in the order of writing, one at a time in memory.

    Args:
        path: the file.
        report: receives one line about an incomplete last record, which is left out.

    Raises:
        UserError: there is no such file; while iterating: a record is damaged (with its offset in the file).
    """
    path = Path(path)
    if not path.is_file():
        steps = ", ".join(map(str, TrajectoryStore(path.parent).steps())) or "none"
        raise UserError(f"there is no file of trajectories {path}; stored iterations: {steps}")
    return _read(path, report)


def _read(path: Path, report: Report) -> Iterator[Trajectory]:
    with open(path, "rb") as file:
        for trajectory, _ in _records(file, path, report):
            yield trajectory


def _file_header(step: int, count: int) -> bytes:
    fields = _FILE.pack(_FILE_MAGIC, FORMAT, step, count, 0)[:-_CRC_BYTES]
    return fields + zlib.crc32(fields).to_bytes(_CRC_BYTES, "little")


def read_trajectory(path: Path | str, offset: int) -> Trajectory:
    """The trajectory whose record begins at an offset of a file of a store, as ``TrajectoryStore.append`` returned it.

    Raises:
        UserError: the file does not exist, or no whole record begins there.
    """
    path = Path(path)
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed below)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    with file:
        file.seek(offset)
        header = file.read(_RECORD.size)
        if len(header) < _RECORD.size:
            raise _damaged(path, offset, "no record begins here")
        stored, decompressed = _body_bytes(header, _RECORD.unpack(header)[1], path, offset)
        return _body(file.read(stored), header, decompressed, path, offset)


def _record(index: int, trajectory: Trajectory) -> bytes:
    data = encode(trajectory)
    body = zlib.compress(data, _LEVEL)
    fields = _RECORD.pack(_RECORD_MAGIC, index, len(body), len(data), _digest(body), 0)[:-_CRC_BYTES]
    return fields + zlib.crc32(fields).to_bytes(_CRC_BYTES, "little") + body


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


def _records(file: BinaryIO, path: Path, report: Report) -> Iterator[tuple[Trajectory, int]]:
    """The trajectories of a file, each with the offset at which its record ends."""
    size = os.fstat(file.fileno()).st_size
    created_with = _read_file_header(file, path)
    index, offset = 0, _FILE.size
    while offset < size:
        header = file.read(_RECORD.size)
        body_bytes = _body_bytes(header, index, path, offset)
        if len(header) < _RECORD.size or offset + _RECORD.size + body_bytes[0] > size:
            break
        yield _body(file.read(body_bytes[0]), header, body_bytes[1], path, offset), file.tell()
        index, offset = index + 1, file.tell()
    if index < created_with:
        raise _damaged(path, offset, f"the file is cut off: it was written with {created_with:,} records")
    if offset < size:
        report(f"{path}: the last record, at byte {offset:,}, is incomplete and left out (its writer was killed)")


def _read_file_header(file: BinaryIO, path: Path) -> int:
    """Checks the header of a file and returns the number of records that it was created with."""
    header = file.read(_FILE.size)
    if len(header) < _FILE.size or not header.startswith(_FILE_MAGIC):
        raise _damaged(path, 0, "it does not begin like a file of trajectories")
    if zlib.crc32(header[:-_CRC_BYTES]) != _FILE.unpack(header)[-1]:
        raise _damaged(path, 0, "its header does not have its checksum")
    _, version, step, count, _ = _FILE.unpack(header)
    if version != FORMAT:
        raise UserError(f"{path} has the format {version}, and this version of k2jax reads {FORMAT}")
    if path.name != f"{step}{SUFFIX}":
        raise _damaged(path, 0, f"it holds the iteration {step}; name it {step}{SUFFIX}")
    return count


def _body_bytes(header: bytes, index: int, path: Path, offset: int) -> tuple[int, int]:
    """Bytes of a record's body as stored and as decompressed; (0, 0) where the file ends within the header."""
    if not header.startswith(_RECORD_MAGIC[: len(header)]):
        raise _damaged(path, offset, "no record begins here")
    if len(header) < _RECORD.size:
        return 0, 0
    _, stored_index, stored, decompressed, _, crc32 = _RECORD.unpack(header)
    if zlib.crc32(header[:-_CRC_BYTES]) != crc32:
        raise _damaged(path, offset, "the record's header does not have its checksum")
    if stored_index != index:
        raise _damaged(path, offset, f"the record {stored_index} stands where the record {index} belongs")
    if max(stored, decompressed) > LARGEST + 2**20:  # what does not compress grows a little
        raise _damaged(path, offset, "the record is larger than any record may be")
    return stored, decompressed


def _body(body: bytes, header: bytes, decompressed_bytes: int, path: Path, offset: int) -> Trajectory:
    """The trajectory of a record's body, which is decompressed to the length in its header and no further."""
    if _digest(body) != _RECORD.unpack(header)[-2]:
        raise _damaged(path, offset, "the record does not have its checksum")
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(body, decompressed_bytes + 1)
        if len(data) != decompressed_bytes or not decompressor.eof or decompressor.unused_data:
            raise EncodingError("its length is not the one in its header")
        return decode(data)
    except (zlib.error, EncodingError) as error:
        raise _damaged(path, offset, f"the record is no trajectory: {error}") from None


def _damaged(path: Path, offset: int, reason: str) -> UserError:
    return UserError(f"{path} is damaged at byte {offset:,}: {reason}; restore or delete the file")


def _write_all(file: BinaryIO, data: bytes) -> None:
    """Writes all of ``data`` to an unbuffered file, whose ``write`` may take less."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Gives an OSError of a write the name of the file, for the message about a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            error.filename = str(path)
        raise


def _sync_folder(folder: Path) -> None:
    """Makes a rename last: a folder's entries are data of their own."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
