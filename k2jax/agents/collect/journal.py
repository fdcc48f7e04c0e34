"""The journal of a collection: which tasks have ended, and where their trajectories lie.

It is a log with a record for each task (see files/append_log.py).
Workers store trajectories before they report them, and a worker may die in between: what lies in its shard and is not
in the journal does not count. A record is appended before anybody learns of the end, so that no death of a process
doubles or loses one.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
import struct
from typing import BinaryIO, get_args
import zlib

from k2jax.agents.collect.lease_table import End
from k2jax.agents.collect.wire_messages import Key, LeaseReport, RecordPlace
from k2jax.files.append_log import AppendLog, Codec, DamagedRecordError, read_log
from k2jax.trajectory import Trajectory
from k2jax.trajectory.store import read_trajectory

FILE = "journal"
SHARDS = "shards"
"""Folder of the workers' stores, each with its own number."""
_ENDS = get_args(End)
_STATUSES = ("", "unfinished", "finished", "truncated", "masked")
_RECORD = struct.Struct("<qqqBBiQdIIIdI")
_CRC_BYTES = 4
_COUNTS = ("tokens", "turns", "calls", "seconds")  # of an emission, in the order of its record


@dataclasses.dataclass(frozen=True)
class Emission:
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
    _: dataclasses.KW_ONLY
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
        names = ("place", "status", "reward", *_COUNTS)
        return cls(key, "done", **{name: getattr(report, name) for name in names})


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
        self.emissions: list[Emission] = []
        self._log = AppendLog(Path(folder) / FILE, _EmissionCodec())
        self._log.open(self.emissions.append)

    def append(self, emission: Emission) -> None:
        """Adds the end of a task; once this returns, no death of the process loses it.

        Raises:
            OSError: it could not be written; the journal is as before.
        """
        self._log.append(emission)

    def close(self) -> None:
        """Waits until everything is on the disk, and lets another process write."""
        self._log.close()


def read_journal(folder: Path | str) -> list[Emission]:
    """The ends of a folder's tasks in order, also while a process writes them; none where there is no journal.

    Raises:
        UserError: it is damaged.
    """
    path = Path(folder) / FILE
    return list(read_log(path, _EmissionCodec())) if path.exists() else []


def shard_path(folder: Path | str, shard: int) -> Path:
    """The folder of a worker's store."""
    return Path(folder) / SHARDS / str(shard)


def stored_trajectory(folder: Path | str, place: RecordPlace) -> Trajectory:
    """The trajectory at a place of a collection.

    Raises:
        UserError: it is not there, or damaged.
    """
    return read_trajectory(shard_path(folder, place.shard) / "0.k2t", place.offset)


class _EmissionCodec(Codec[Emission]):
    """Records of 68 bytes behind a magic number, each with its CRC-32."""

    header = b"k2jaxjr1"

    def encode(self, emission: Emission, index: int) -> bytes:
        shard, offset = (-1, 0) if emission.place is None else emission.place
        reward = math.nan if emission.reward is None else emission.reward
        counts = [getattr(emission, name) for name in _COUNTS]
        words = _ENDS.index(emission.end), _STATUSES.index(emission.status)
        fields = _RECORD.pack(*emission.key, *words, shard, offset, reward, *counts, 0)[:-_CRC_BYTES]
        return fields + zlib.crc32(fields).to_bytes(_CRC_BYTES, "little")

    def decode(self, file: BinaryIO, index: int) -> Emission | None:
        record = file.read(_RECORD.size)
        if len(record) < _RECORD.size:
            return None
        step, prompt, sample, end, status, shard, offset, reward, *counts, crc = _RECORD.unpack(record)
        if zlib.crc32(record[:-_CRC_BYTES]) != crc:
            raise DamagedRecordError("the record does not have its checksum")
        place = None if shard < 0 else RecordPlace(shard, offset)
        reward = None if math.isnan(reward) else reward
        named = dict(zip(_COUNTS, counts, strict=True))
        return Emission(
            (step, prompt, sample), _ENDS[end], place=place, status=_STATUSES[status], reward=reward, **named
        )
