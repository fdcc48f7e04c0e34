"""What the scheduler and its workers say to each other: fixed records, in which no token is."""

from __future__ import annotations

import dataclasses
import enum
import math
import struct
from typing import NamedTuple, get_args

from k2jax.trajectory.types import Status

Key = tuple[int, int, int]
"""(step, prompt, sample) of an episode."""
_STATUSES = get_args(Status)


class Said(enum.IntEnum):
    """Kinds of frames."""

    READY = 1  # worker: it may be given leases
    LEASE = 2  # scheduler: LeaseOrder
    REVOKE = 3  # scheduler: the number of a lease to be given back
    DONE = 4  # worker: LeaseReport
    FAILED = 5  # worker: number, and why there is no trajectory
    RELEASED = 6  # worker: number of a lease that was revoked
    FATAL = 7  # worker: a mistake of the user, or a traceback; the run ends
    START = 8  # worker: StartOrder, a task that one of its leases has started
    STARTED_END = 9  # scheduler: StartedEnd, what became of it
    DROP = 10  # worker: number of a lease, number of a task that it has started and waits for no more


class RecordPlace(NamedTuple):
    """Where a trajectory lies: the shard of a worker, and the offset of its record."""

    shard: int
    offset: int


class LeaseOrder(NamedTuple):
    """A lease as a worker gets it.

    Attributes:
        number: of the lease.
        key: of the episode.
        line: offset of the task's line in its file.
        paused: where the episode goes on; None to begin.
        starter: shard of the worker whose file the line is in; None for the collection's tasks.
    """

    number: int
    key: Key
    line: int
    paused: RecordPlace | None = None
    starter: int | None = None

    def pack(self) -> bytes:
        """The record; ``unpack`` is the inverse."""
        shard, offset = (-1, 0) if self.paused is None else self.paused
        starter = -1 if self.starter is None else self.starter
        return _ORDER.pack(self.number, *self.key, self.line, shard, offset, starter)

    @classmethod
    def unpack(cls, data: bytes) -> LeaseOrder:
        """Reads a record."""
        number, step, prompt, sample, line, shard, offset, starter = _ORDER.unpack(data)
        paused = None if shard < 0 else RecordPlace(shard, offset)
        return cls(number, (step, prompt, sample), line, paused, None if starter < 0 else starter)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeaseReport:
    """What became of a lease: an episode that is stored, with what a reader of progress wants to know of it.

    Attributes:
        number: of the lease.
        place: of the trajectory.
        status: of the trajectory; an unfinished one is paused.
        reward: its value; None where there is none.
        tokens: that were sampled.
        turns: calls of the model.
        calls: of tools.
        seconds: from the lease's arrival to the report [s].
        engine: of these, waiting for the model [s].
        environment: of these, waiting for the environment and its tools [s].
        scoring: of these, waiting for the verifier [s].
    """

    number: int
    place: RecordPlace
    status: Status
    reward: float | None
    tokens: int
    turns: int
    calls: int = 0
    seconds: float = 0.0
    engine: float = 0.0
    environment: float = 0.0
    scoring: float = 0.0

    def pack(self) -> bytes:
        """The record; ``unpack`` is the inverse."""
        reward = math.nan if self.reward is None else self.reward
        status = _STATUSES.index(self.status)
        return _REPORT.pack(self.number, *self.place, status, reward, *(getattr(self, name) for name in _COUNTS))

    @classmethod
    def unpack(cls, data: bytes) -> LeaseReport:
        """Reads a record."""
        number, shard, offset, status, reward, *counts = _REPORT.unpack(data)
        reward = None if math.isnan(reward) else reward
        return cls(
            number=number,
            place=RecordPlace(shard, offset),
            status=_STATUSES[status],
            reward=reward,
            **dict(zip(_COUNTS, counts, strict=True)),
        )


class StartOrder(NamedTuple):
    """A task that a running one has started.

    Attributes:
        lease: of the running task.
        number: of the started task, among those of the lease.
        line: offset of the task's line in the file of the worker's shard.
    """

    lease: int
    number: int
    line: int

    def pack(self) -> bytes:
        """The record; ``unpack`` is the inverse."""
        return _START.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> StartOrder:
        """Reads a record."""
        return cls(*_START.unpack(data))


class StartedEnd(NamedTuple):
    """The end of a started task.

    Attributes:
        lease: of the task that had started it.
        number: of the task, among those of the lease.
        place: of its trajectory; None where the infrastructure failed.
        reason: why it failed.
    """

    lease: int
    number: int
    place: RecordPlace | None
    reason: str = ""

    def pack(self) -> bytes:
        """The record; ``unpack`` is the inverse."""
        shard, offset = (-1, 0) if self.place is None else self.place
        return _STARTED_END.pack(self.lease, self.number, shard, offset) + self.reason.encode()

    @classmethod
    def unpack(cls, data: bytes) -> StartedEnd:
        """Reads a record."""
        lease, number, shard, offset = _STARTED_END.unpack_from(data)
        place = None if shard < 0 else RecordPlace(shard, offset)
        return cls(lease, number, place, data[_STARTED_END.size :].decode(errors="replace"))


NUMBER = struct.Struct("<Q")
LEASE_AND_NUMBER = struct.Struct("<QI")
_START = struct.Struct("<QIQ")
_STARTED_END = struct.Struct("<QIiQ")
_ORDER = struct.Struct("<QqqqQiQi")
_REPORT = struct.Struct("<QIQBdIIIdddd")
_COUNTS = ("tokens", "turns", "calls", "seconds", "engine", "environment", "scoring")
"""Of a report, in the order of its record."""
