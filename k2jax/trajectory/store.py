"""Trajectories on disk: one append-only file per iteration, every record with a checksum, none of them unpickled.

A file ``STEP.k2t`` is a header and records. The header has a magic number, the format, the step, the number of records
that the file was created with, and a CRC-32 of these. A record has a magic number, its index, the lengths of its body
as stored and as decompressed, a 128-bit BLAKE2b digest of the stored body and a CRC-32 of all that, and then the body:
an encoded trajectory (``encoding.py``) compressed by zlib. All numbers are little-endian.

An incomplete last record is a warning (see files/append_log.py). Anything else that is not as it was written is a
UserError with the file and the offset.

``write`` replaces an iteration's file by one rename after an fsync of the file, and then syncs the folder: it survives
a power failure. ``append`` hands each record to the operating system with one call: it survives the death of the
process at once, and a power failure from the next ``sync`` on, which ``close`` and the first append of another step
imply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import hashlib
import os
from pathlib import Path
import struct
import sys
from typing import BinaryIO
import zlib

from k2jax.errors import UserError
from k2jax.files.append_log import AppendLog, Codec, DamagedRecordError, damaged, read_log
from k2jax.files.atomic import replacing, write_atomic
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


def _print_warning(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


class TrajectoryStore:
    """The trajectories of a run by iteration. One process writes, any number read.

    Args:
        folder: the folder of the files; created by the first write.
        keep: how many iterations stay, the newest; None keeps all.
    """

    def __init__(self, folder: Path | str, keep: int | None = None):
        if keep is not None and keep < 1:
            raise ValueError("a store keeps at least one iteration")
        self.folder = Path(folder)
        self._keep = keep
        self._open: tuple[int, AppendLog[Trajectory]] | None = None  # of the step that was appended to last

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
        path, records = self.path(step), _Records(step)
        with replacing(path) as file:
            file.write(_file_header(step, 0))
            count = 0
            for trajectory in trajectories:
                file.write(records.encode(trajectory, count))
                count += 1
            file.seek(0)
            file.write(_file_header(step, count))
        _sync_folder(self.folder)
        self._retain(step)
        return path

    def append(self, step: int, trajectory: Trajectory) -> int:
        """Adds a trajectory to an iteration; once this returns, no death of the process loses it.

        An incomplete last record of an earlier process is a warning and cut off first.

        Returns:
            The offset of its record in the file, for ``read_trajectory``.

        Raises:
            EncodingError: the trajectory cannot be stored; the file is as before.
            UserError: the file is damaged, or another process appends to it.
        """
        if self._open is None or self._open[0] != step:
            self.close()
            path = self.path(step)
            if not path.exists():
                write_atomic(path, _file_header(step, 0))
                self._retain(step)
            log = AppendLog(path, _Records(step), report=_print_warning)
            log.open()
            self._open = step, log
        return self._open[1].append(trajectory)

    def read(self, step: int) -> Iterator[Trajectory]:
        """The trajectories of an iteration in the order of writing, one at a time in memory.

        Raises:
            UserError: the iteration is not stored; while iterating: a record is damaged.
        """
        return read_trajectories(self.path(step))

    def discard(self, step: int) -> None:
        """Removes an iteration, for a resumed run that appends it from its start again."""
        if self._open is not None and self._open[0] == step:
            self.close()
        self.path(step).unlink(missing_ok=True)

    def sync(self) -> None:
        """Waits until what was appended is on the disk."""
        if self._open is not None:
            self._open[1].sync()

    def close(self) -> None:
        """Syncs and closes the file that is appended to; the store remains usable."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def __enter__(self) -> TrajectoryStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _retain(self, step: int) -> None:
        """Removes the oldest iterations beyond ``keep``, never the one just written, and what killed writers left."""
        for path in self.folder.glob(_STALE):
            path.unlink(missing_ok=True)
        if self._keep is not None:
            for old in self.steps()[: -self._keep]:
                if old != step:
                    self.path(old).unlink(missing_ok=True)


def read_trajectories(path: Path | str, warn: Callable[[str], None] | None = None) -> Iterator[Trajectory]:
    """The trajectories of a file of a store in the order of writing, one at a time in memory.

    Args:
        path: of the file.
        warn: receives a line about an incomplete last record; None for the error output.

    Raises:
        UserError: there is no such file; while iterating: a record is damaged (with its offset in the file).
    """
    path = Path(path)
    if not path.is_file():
        steps = ", ".join(map(str, TrajectoryStore(path.parent).steps())) or "none"
        raise UserError(f"there is no file of trajectories {path}; stored iterations: {steps}")
    step = path.name.removesuffix(SUFFIX)
    return read_log(path, _Records(int(step) if step.isdecimal() else -1), warn or _print_warning)


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
        try:
            trajectory = _Records(-1).decode(file, None)
            if trajectory is None:
                raise DamagedRecordError("no whole record begins here")
        except DamagedRecordError as error:
            raise damaged(path, offset, error) from None
    return trajectory


class _Records(Codec[Trajectory]):
    """The records of the file of an iteration."""

    def __init__(self, step: int):
        self._step, self._created_with = step, 0

    def encode(self, trajectory: Trajectory, index: int) -> bytes:
        data = encode(trajectory)
        body = zlib.compress(data, _LEVEL)
        fields = _RECORD.pack(_RECORD_MAGIC, index, len(body), len(data), _digest(body), 0)[:-_CRC_BYTES]
        return fields + zlib.crc32(fields).to_bytes(_CRC_BYTES, "little") + body

    def decode(self, file: BinaryIO, index: int) -> Trajectory | None:
        header = file.read(_RECORD.size)
        stored, decompressed = _body_bytes(header, index)
        body = file.read(stored)
        if len(header) < _RECORD.size or len(body) < stored:
            return None
        return _trajectory(body, header, decompressed)

    def read_header(self, file: BinaryIO) -> bool:
        header = file.read(_FILE.size)
        if header.lstrip()[:1] in (b"{", b"["):
            raise UserError(
                f"{file.name} is JSON and no file of trajectories: rows of tokens that k2jax.trajectories exported are "
                "a source of kind token_rows"
            )
        if len(header) < _FILE.size or not header.startswith(_FILE_MAGIC):
            raise DamagedRecordError("it does not begin like a file of trajectories")
        if zlib.crc32(header[:-_CRC_BYTES]) != _FILE.unpack(header)[-1]:
            raise DamagedRecordError("its header does not have its checksum")
        _, version, step, self._created_with, _ = _FILE.unpack(header)
        if version != FORMAT:
            raise UserError(f"{file.name} has the format {version}, and this version of k2jax reads {FORMAT}")
        if step != self._step:
            raise DamagedRecordError(f"it holds the iteration {step}; name it {step}{SUFFIX}")
        return True

    def check_count(self, count: int) -> None:
        if count < self._created_with:
            raise DamagedRecordError(f"the file is cut off: it was written with {self._created_with:,} records")


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


def _body_bytes(header: bytes, index: int | None) -> tuple[int, int]:
    """Bytes of a record's body as stored and as decompressed; (0, 0) where the file ends within the header."""
    if not header.startswith(_RECORD_MAGIC[: len(header)]):
        raise DamagedRecordError("no record begins here")
    if len(header) < _RECORD.size:
        return 0, 0
    _, stored_index, stored, decompressed, _, crc32 = _RECORD.unpack(header)
    if zlib.crc32(header[:-_CRC_BYTES]) != crc32:
        raise DamagedRecordError("the record's header does not have its checksum")
    if index not in (None, stored_index):
        raise DamagedRecordError(f"the record {stored_index} stands where the record {index} belongs")
    if max(stored, decompressed) > LARGEST + 2**20:  # what does not compress grows a little
        raise DamagedRecordError("the record is larger than any record may be")
    return stored, decompressed


def _trajectory(body: bytes, header: bytes, decompressed_bytes: int) -> Trajectory:
    """The trajectory of a record's body, which is decompressed to the length in its header and no further."""
    if _digest(body) != _RECORD.unpack(header)[-2]:
        raise DamagedRecordError("the record does not have its checksum")
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(body, decompressed_bytes + 1)
        if len(data) != decompressed_bytes or not decompressor.eof or decompressor.unused_data:
            raise EncodingError("its length is not the one in its header")
        return decode(data)
    except (zlib.error, EncodingError) as error:
        raise DamagedRecordError(f"the record is no trajectory: {error}") from None


def _sync_folder(folder: Path) -> None:
    """Makes a rename last: a folder's entries are data of their own."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
