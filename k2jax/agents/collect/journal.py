"""The journal of a collection: which tasks have ended, and where their trajectories lie. Append-only, one record each.

Workers store trajectories before they report them, and a worker may die in between: what lies in its shard and is not
in the journal does not count. A record is handed to the operating system with one call before anybody learns of the
end, so that no death of a process doubles or loses one. A process that is killed while it writes leaves an incomplete
last record, which the next one cuts off.
"""

from __future__ import annotations

from collections.abc import Iterator
import fcntl
import math
import os
from pathlib import Path
import struct
from typing import NamedTuple, get_args
import zlib

from k2jax.agents.collect.lease_table import End
from k2jax.agents.collect.wire_messages import Key, LeaseReport, RecordPlace
from k2jax.errors import UserError
from k2jax.trajectory import Trajectory
from k2jax.trajectory.store import read_trajectory

SHARDS = "shards"
"""Folder of the workers' stores, each with its own number."""
_MAGIC = b"k2jaxjr1"
_ENDS = get_args(End)
_STATUSES = ("", "unfinished", "finished", "truncated", "masked")
_RECORD = struct.Struct("<qqqBBiQdIIIdI")
_CRC_BYTES = 4


class Emission(NamedTuple):
    """The end of a task, as the manager hands it on: once for every task.

    Attributes:
        key: (step, prompt, sample).
        end: ``done`` with a trajectory; ``masked`` or ``cancelled`` without one.
        place: of the trajectory, or None.
        status: of the trajectory; empty without one.
        reward: its value, or None.
        tokens: that were sampled.
        turns: calls of the model.
        calls: of tools.
        seconds: that its worker took [s].
    """

    key: Key
    end: End
    place: RecordPlace | None = None
    status: str = ""
    reward: float | None = None
    tokens: int = 0
    turns: int = 0
    calls: int = 0
    seconds: float = 0.0

    @classmethod
    def of_report(cls, key: Key, report: LeaseReport) -> Emission:
        """The end of a task that is done."""
        return cls(key, "done", *report[1:8])


class Journal:
    """The journal of a folder, which one process at a time may write.

    Args:
        folder: of the collection; it is created.

    Attributes:
        emissions: of earlier processes, in order.

    Raises:
        UserError: another process writes it, or it is damaged.
    """

    def __init__(self, folder: Path | str):
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._path = Path(folder) / "journal"
        self._file = open(self._path, "a+b", buffering=0)  # noqa: SIM115 (closed by close)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UserError(f"another process collects rollouts in {folder}; stop it first") from None
        self._file.seek(0)
        data = self._file.read()
        if not _MAGIC.startswith(data[: len(_MAGIC)]):
            raise UserError(f"{self._path} is no journal of rollouts; give another folder")
        self.emissions = list(_records(data, self._path))
        whole = len(_MAGIC) + _RECORD.size * len(self.emissions)
        if len(data) < len(_MAGIC):
            whole = 0
        self._file.truncate(whole)
        if not whole:
            self._file.write(_MAGIC)

    def append(self, emission: Emission) -> None:
        """Adds the end of a task; once this returns, no death of the process loses it."""
        end = self._file.seek(0, os.SEEK_END)
        data = _pack(emission)
        if self._file.write(data) != len(data):  # a full disk: the next record must not follow half a record
            self._file.truncate(end)
            raise OSError(28, os.strerror(28), str(self._path))

    def close(self) -> None:
        """Waits until everything is on the disk, and lets another process write."""
        os.fsync(self._file.fileno())
        self._file.close()


def read_journal(folder: Path | str) -> list[Emission]:
    """The ends of a folder's tasks in order, also while a process writes them; none where there is no journal.

    Raises:
        UserError: it is damaged.
    """
    path = Path(folder) / "journal"
    return list(_records(path.read_bytes(), path)) if path.exists() else []


def shard_path(folder: Path | str, shard: int) -> Path:
    """The folder of a worker's store."""
    return Path(folder) / SHARDS / str(shard)


def stored_trajectory(folder: Path | str, place: RecordPlace) -> Trajectory:
    """The trajectory at a place of a collection.

    Raises:
        UserError: it is not there, or damaged.
    """
    return read_trajectory(shard_path(folder, place.shard) / "0.k2t", place.offset)


def _pack(emission: Emission) -> bytes:
    shard, offset = (-1, 0) if emission.place is None else emission.place
    reward = math.nan if emission.reward is None else emission.reward
    words = _ENDS.index(emission.end), _STATUSES.index(emission.status)
    fields = _RECORD.pack(*emission.key, *words, shard, offset, reward, *emission[5:], 0)[:-_CRC_BYTES]
    return fields + zlib.crc32(fields).to_bytes(_CRC_BYTES, "little")


def _records(data: bytes, path: Path) -> Iterator[Emission]:
    for begin in range(len(_MAGIC), len(data) - _RECORD.size + 1, _RECORD.size):
        record = data[begin : begin + _RECORD.size]
        step, prompt, sample, end, status, shard, offset, reward, *counts, crc = _RECORD.unpack(record)
        if zlib.crc32(record[:-_CRC_BYTES]) != crc:
            raise UserError(f"{path} is damaged at byte {begin:,}; restore or delete the file")
        place = None if shard < 0 else RecordPlace(shard, offset)
        reward = None if math.isnan(reward) else reward
        yield Emission((step, prompt, sample), _ENDS[end], place, _STATUSES[status], reward, *counts)
