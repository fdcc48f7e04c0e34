"""A worker process: it runs the episodes of its leases as coroutines and stores what comes of them in its own shard.

Its arguments are the collection's folder, the descriptor of a socket to the scheduler, and the number of its shard. It
ends when the other end of the socket closes. What it does with a lease is a ``Runner``'s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
import asyncio
import contextlib
import errno
import functools
from importlib import import_module
import json
import os
from pathlib import Path
import signal
import socket
import sys
import time
import traceback
from typing import Any, NamedTuple, Protocol

from k2jax.agents.collect.event_loop import calm_collector, connect, end_all, run
from k2jax.agents.collect.journal import shard_path, stored_trajectory
from k2jax.agents.collect.queue_file import FILE, WrittenTask, read_task
from k2jax.agents.collect.wire import VERSION, VERSION_NUMBER, FrameConnection
from k2jax.agents.collect.wire_messages import (
    LEASE_AND_NUMBER,
    NUMBER,
    Key,
    LeaseOrder,
    LeaseReport,
    RecordPlace,
    StartedEnd,
    StartOrder,
    WorkerMessage,
    pack_carried,
)
from k2jax.agents.errors import SubEpisodeError
from k2jax.agents.spawning import Run, Spawner, SubEpisode
from k2jax.errors import InfrastructureError, UserError
from k2jax.files.append_log import AppendLog, Lines
from k2jax.trajectory import Trajectory, TrajectoryStore
from k2jax.trajectory.encoding import encode
from k2jax.trajectory.types import NO_TURN


class Waits(NamedTuple):
    """What an episode waited for, for monitoring [s]."""

    engine: float = 0.0
    environment: float = 0.0
    scoring: float = 0.0


class Runner(Protocol):
    """Runs episodes on the event loop of a worker, within ``async with``. Its maker is called with JSON options.

    Attributes:
        roles: who may answer in sub-episodes, see ``k2jax.agents.roles``.
    """

    roles: tuple[str, ...]

    async def __aenter__(self) -> Runner: ...

    async def __aexit__(self, *error: object) -> None: ...

    async def run(
        self, key: Key, written: WrittenTask, trajectory: Trajectory | None, spawner: Spawner
    ) -> tuple[Trajectory, Waits]:
        """Runs an episode to its end and judges it, or until it pauses.

        Args:
            key: of the lease, from which ``written`` knows that of the episode.
            written: the task, its class and the choices of a training run.
            trajectory: an unfinished episode that continues; None to begin.
            spawner: runs sub-episodes; its ``path`` says which of a task's sub-episodes this is.

        Raises:
            InfrastructureError: a machine failed; the task is tried again, perhaps by another worker.
            UserError: it cannot work; the run ends.
        """
        ...


def made_by(maker: str, **options: Any) -> Any:
    """What a maker ``module:attribute`` makes of options."""
    return attribute_at(maker)(**options)


def attribute_at(path: str) -> Any:
    """The attribute of a path ``module:attribute``."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


_NICE = 5
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
JOB = "job.json"
"""File of a collection: the class of its workers, and the maker of their runner with its options."""


class SpawnedTasks:
    """The sub-episodes of a worker's leases: each runs as a task of its own, on whichever worker has room.

    The task goes to a file in the shard's folder and its offset to the scheduler, which leases it like any other; its
    end comes back as the place of a trajectory. A spawned task ends with the lease of the one that spawned it, and an
    episode that runs again spawns the same ones, with the same random numbers.

    Args:
        folder: of the collection.
        shard: of the worker.
        connection: to the scheduler.
    """

    def __init__(self, folder: Path, shard: int, connection: FrameConnection):
        self._folder, self._connection = folder, connection
        self._written = AppendLog(shard_path(folder, shard) / FILE, Lines())
        self._waiting: dict[tuple[int, int], asyncio.Future[RecordPlace]] = {}

    def of(self, lease: int, written: WrittenTask) -> Run:
        """What the ``Spawner`` of a lease's episode runs its sub-episodes with."""
        return lambda spawned: self._run(lease, written, spawned)

    async def _run(self, lease: int, starter: WrittenTask, spawned: SubEpisode) -> Trajectory:
        """Waits for the end of a task that a lease spawns; cancelling the coroutine cancels the task.

        Raises:
            SubEpisodeError: it has no trajectory.
        """
        name = lease, number = lease, spawned.path[-1]
        written = WrittenTask(spawned.kind, spawned.task, spawned.path, starter.choices, spawned.role)
        line = self._written.append(written.line())
        done = self._waiting[name] = asyncio.get_running_loop().create_future()
        self._connection.send(WorkerMessage.START, StartOrder(lease, number, line).pack())
        try:
            place = await done
        except asyncio.CancelledError:
            self._connection.send(WorkerMessage.DROP, LEASE_AND_NUMBER.pack(*name))
            raise
        finally:
            del self._waiting[name]
        return stored_trajectory(self._folder, place)

    def settle(self, ended: StartedEnd) -> None:
        """The scheduler says that a task has ended."""
        done = self._waiting.get((ended.lease, ended.number))
        if done is None or done.done():  # nobody waits any more
            return
        if ended.place is None:
            done.set_exception(SubEpisodeError(ended.reason or "it was cancelled"))
        else:
            done.set_result(ended.place)

    def close(self) -> None:
        """Closes the file."""
        self._written.close()


class LeaseWorker(ABC):
    """A worker's end of its connection to the scheduler: leases begin, are revoked, and end in reports or failures."""

    def __init__(self) -> None:
        self._leases: dict[int, asyncio.Task[None]] = {}
        self._ended = asyncio.Event()
        self.connection = FrameConnection(self._on_frame, self._ended.set)

    @abstractmethod
    async def carry_out(self, order: LeaseOrder) -> None:
        """Does what a lease asks for and reports it.

        Raises:
            InfrastructureError: a machine failed; the task is tried again, perhaps by another worker.
            UserError: it cannot work; the run ends.
        """

    def told(self, kind: int, body: bytes) -> None:  # noqa: B027
        """Acts on any other frame of the scheduler's."""

    def close(self) -> None:  # noqa: B027
        """Closes files."""

    async def serve(self, connection: socket.socket) -> None:
        """Works until the scheduler closes the connection; what still runs then is cancelled."""
        await connect(self.connection, connection)
        self.connection.send(WorkerMessage.READY, VERSION_NUMBER.pack(VERSION))
        await self._ended.wait()
        await end_all(self._leases.values())
        self.close()

    def _on_frame(self, kind: int, body: bytes) -> None:
        if kind == WorkerMessage.LEASE:
            order = LeaseOrder.unpack(body)
            lease = asyncio.ensure_future(self._carry_out(order))
            self._leases[order.number] = lease
            lease.add_done_callback(lambda _: self._leases.pop(order.number))
        elif kind == WorkerMessage.REVOKE:
            (number,) = NUMBER.unpack(body)
            if number in self._leases:  # or its report is on the way
                self._leases[number].cancel()
        else:
            self.told(kind, body)

    async def _carry_out(self, order: LeaseOrder) -> None:
        number = NUMBER.pack(order.number)
        try:
            await self.carry_out(order)
        except asyncio.CancelledError:
            self.connection.send(WorkerMessage.RELEASED, number)
        except InfrastructureError as error:  # some are a UserError too: to a command, which has no other machine
            self.connection.send(WorkerMessage.FAILED, number, f"{type(error).__name__}: {error}".encode())
        except UserError as error:
            self.connection.send(WorkerMessage.FATAL, b"u" + str(error).encode())
        except Exception as error:
            full = isinstance(error, OSError) and error.errno in _NO_ROOM
            message = b"u%s: make room" % str(error).encode() if full else b"e" + traceback.format_exc().encode()
            self.connection.send(WorkerMessage.FATAL, message)


class RolloutWorker(LeaseWorker):
    """Runs the episodes of leases.

    Args:
        folder: of the collection.
        shard: number of its store.
        runner: runs episodes.
    """

    def __init__(self, folder: Path, shard: int, runner: Runner):
        super().__init__()
        self._folder, self._shard, self._runner = folder, shard, runner
        self._read_task = functools.lru_cache(maxsize=1)(read_task)  # samples of a task follow one another
        self._store = TrajectoryStore(shard_path(folder, shard))
        self._spawned = SpawnedTasks(folder, shard, self.connection)

    def close(self) -> None:
        """See ``LeaseWorker``."""
        self._spawned.close()
        self._store.close()

    def told(self, kind: int, body: bytes) -> None:
        """A task that an episode has started has ended."""
        if kind == WorkerMessage.STARTED_END:
            self._spawned.settle(StartedEnd.unpack(body))

    async def carry_out(self, order: LeaseOrder) -> None:
        """See ``LeaseWorker``."""
        began, written = time.monotonic(), self._written(order)
        paused = None if order.paused is None else stored_trajectory(self._folder, order.paused)
        run, roles = self._spawned.of(order.number, written), self._runner.roles
        spawner = Spawner(run, written.kind, written.path, written.role, roles)
        trajectory, waits = await self._runner.run(order.key, written, paused, spawner)
        self._deliver(order, trajectory, time.monotonic() - began, waits)

    def _deliver(self, order: LeaseOrder, trajectory: Trajectory, seconds: float, waits: Waits) -> None:
        """Stores a trajectory, or sends it with the report where its order came with the task."""
        if order.text:
            report = _report(order.number, None, trajectory, seconds, waits)
            self.connection.send(WorkerMessage.CARRIED, *pack_carried(report, encode(trajectory)))
            return
        place = RecordPlace(self._shard, self._store.append(0, trajectory))
        self.connection.send(WorkerMessage.DONE, _report(order.number, place, trajectory, seconds, waits).pack())

    def _written(self, order: LeaseOrder) -> WrittenTask:
        if order.text:
            return WrittenTask.read(order.text)
        if order.starter is None:
            return self._read_task(self._folder, order.line)
        return read_task(shard_path(self._folder, order.starter), order.line)


def _report(
    number: int, place: RecordPlace | None, trajectory: Trajectory, seconds: float, waits: Waits
) -> LeaseReport:
    turns = {node.turn for node in trajectory.nodes} - {NO_TURN}
    calls = sum(len((node.message or {}).get("tool_calls") or ()) for node in trajectory.nodes if node.turn != NO_TURN)
    return LeaseReport(
        number=number,
        place=place,
        status=trajectory.status,
        reward=None if trajectory.reward is None else float(trajectory.reward.value),
        tokens=trajectory.sampled_tokens,
        turns=len(turns),
        calls=calls,
        seconds=seconds,
        **waits._asdict(),
    )


async def work(folder: Path, connection: socket.socket, shard: int) -> None:
    """Runs a worker of the class and with the runner that the collection's job names."""
    job = json.loads((folder / JOB).read_bytes())
    async with made_by(job["runner"], **job["options"]) as runner:
        worker = attribute_at(job["worker"])(folder, shard, runner)
        calm_collector()
        await worker.serve(connection)


def _yield_to_scheduler() -> None:
    """Lowers the priority of this process and, where Linux groups processes by session, of its session."""
    os.nice(_NICE)
    with contextlib.suppress(OSError):  # no autogroups here, or they were set a moment ago
        Path("/proc/self/autogroup").write_text(str(_NICE))


def main() -> None:
    """Serves the socket whose descriptor is the second argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the scheduler's business
    _yield_to_scheduler()
    folder, descriptor, shard = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as connection:
        run(work(Path(folder), connection, int(shard)))


if __name__ == "__main__":
    main()
