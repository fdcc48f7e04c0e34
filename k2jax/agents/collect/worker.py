"""A worker process: it runs the episodes of its leases as coroutines and stores what comes of them in its own shard.

Its arguments are the collection's folder, the descriptor of a socket to the scheduler, and the number of its shard. It
ends when the other end of the socket closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import os
from pathlib import Path
import signal
import socket
import sys
import time
import traceback

from k2jax.agents.collect.journal import shard_path, stored_trajectory
from k2jax.agents.collect.launchers import connect
from k2jax.agents.collect.loops import run
from k2jax.agents.collect.queue_file import TaskReader, WrittenTask, read_started
from k2jax.agents.collect.runner import Runner, make_runner
from k2jax.agents.collect.scheduler_lag import calm_collector
from k2jax.agents.collect.spawned_tasks import SpawnedTasks
from k2jax.agents.collect.wire import FrameConnection
from k2jax.agents.collect.wire_messages import NUMBER, LeaseOrder, LeaseReport, RecordPlace, Said, StartedEnd
from k2jax.agents.spawning import Spawner
from k2jax.errors import InfrastructureError, UserError
from k2jax.trajectory import Trajectory, TrajectoryStore
from k2jax.trajectory.types import NO_TURN

_NICE = 5
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
JOB = "job.json"
"""File of a collection: the maker of the runner and its options."""


class RolloutWorker:
    """Answers the scheduler's orders.

    Args:
        folder: of the collection.
        shard: number of its store.
        runner: runs episodes.
    """

    def __init__(self, folder: Path, shard: int, runner: Runner):
        self._folder, self._shard, self._runner = folder, shard, runner
        self._tasks = TaskReader(folder)
        self._store = TrajectoryStore(shard_path(folder, shard))
        self._episodes: dict[int, asyncio.Task[None]] = {}
        self._ended = asyncio.Event()
        self._connection = FrameConnection(self._on_frame, self._ended.set)
        self._started = SpawnedTasks(folder, shard, self._connection)

    async def serve(self, connection: socket.socket) -> None:
        """Works until the scheduler closes the connection; what still runs then is cancelled."""
        await connect(self._connection, connection)
        self._connection.send(Said.READY)
        await self._ended.wait()
        running = list(self._episodes.values())
        for episode in running:
            episode.cancel()
        if running:
            await asyncio.wait(running)
        self._started.close()
        self._store.close()

    def _on_frame(self, kind: int, body: bytes) -> None:
        if kind == Said.LEASE:
            order = LeaseOrder.unpack(body)
            episode = asyncio.ensure_future(self._carry_out(order))
            self._episodes[order.number] = episode
            episode.add_done_callback(lambda _: self._episodes.pop(order.number))
        elif kind == Said.REVOKE:
            (number,) = NUMBER.unpack(body)
            if number in self._episodes:  # or its report is on the way
                self._episodes[number].cancel()
        elif kind == Said.STARTED_END:
            self._started.settle(StartedEnd.unpack(body))

    async def _carry_out(self, order: LeaseOrder) -> None:
        number, began = NUMBER.pack(order.number), time.monotonic()
        try:
            written = self._written(order)
            known = None if order.paused is None else stored_trajectory(self._folder, order.paused)
            spawner = Spawner(self._started.of(order.number), written.kind, written.path)
            trajectory, waits = await self._runner.run(order.key, written.kind, written.task, known, spawner)
            offset = self._store.append(0, trajectory)
            report = _report(order.number, RecordPlace(self._shard, offset), trajectory, time.monotonic() - began)
            self._connection.send(Said.DONE, dataclasses.replace(report, **waits._asdict()).pack())
        except asyncio.CancelledError:
            self._connection.send(Said.RELEASED, number)
        except InfrastructureError as error:  # some are a UserError too: to a command, which has no other machine
            self._connection.send(Said.FAILED, number, f"{type(error).__name__}: {error}".encode())
        except UserError as error:
            self._connection.send(Said.FATAL, b"u" + str(error).encode())
        except Exception as error:
            full = isinstance(error, OSError) and error.errno in _NO_ROOM
            told = b"u%s: make room" % str(error).encode() if full else b"e" + traceback.format_exc().encode()
            self._connection.send(Said.FATAL, told)

    def _written(self, order: LeaseOrder) -> WrittenTask:
        if order.starter is None:
            return self._tasks.read(order.line)
        return read_started(shard_path(self._folder, order.starter), order.line)


def _report(number: int, place: RecordPlace, trajectory: Trajectory, seconds: float) -> LeaseReport:
    turns = {node.turn for node in trajectory.nodes} - {NO_TURN}
    calls = sum(len((node.message or {}).get("tool_calls") or ()) for node in trajectory.nodes if node.turn != NO_TURN)
    reward = None if trajectory.reward is None else float(trajectory.reward.value)
    tokens = trajectory.sampled_tokens
    return LeaseReport(
        number=number,
        place=place,
        status=trajectory.status,
        reward=reward,
        tokens=tokens,
        turns=len(turns),
        calls=calls,
        seconds=seconds,
    )


async def work(folder: Path, connection: socket.socket, shard: int) -> None:
    """Runs a worker with the runner that the collection's job names."""
    job = json.loads((folder / JOB).read_bytes())
    async with make_runner(job["runner"], job["options"]) as runner:
        worker = RolloutWorker(folder, shard, runner)
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
