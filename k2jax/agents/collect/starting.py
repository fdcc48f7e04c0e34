"""Sub-episodes: what a running episode starts runs as a task of its own, on whichever worker has room.

The worker writes the task to a file in its shard's folder and tells the scheduler the offset. The scheduler leases it
like any other; its end comes back as the place of a trajectory. A started task ends with the lease of the one that
started it, and an episode that runs again starts the same ones, with the same random numbers.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from k2jax.agents.collect.journal import shard_path, stored_trajectory
from k2jax.agents.collect.queue_file import FILE, WrittenTask
from k2jax.agents.collect.wire import FrameConnection
from k2jax.agents.collect.wire_messages import LEASE_AND_NUMBER, RecordPlace, Said, StartedEnd, StartOrder
from k2jax.agents.errors import SubEpisodeError
from k2jax.agents.task import Task
from k2jax.files.append_log import AppendLog, Lines
from k2jax.trajectory import Trajectory


class StartedTasks:
    """Started tasks of a worker's leases.

    Args:
        folder: of the collection.
        shard: of the worker.
        connection: to the scheduler.
    """

    def __init__(self, folder: Path, shard: int, connection: FrameConnection):
        self._folder, self._connection = folder, connection
        self._written = AppendLog(shard_path(folder, shard) / FILE, Lines())
        self._waiting: dict[tuple[int, int], asyncio.Future[RecordPlace]] = {}

    def starter(self, lease: int, written: WrittenTask) -> EpisodeStarter:
        """What the episode of a lease starts others with."""
        return EpisodeStarter(self, lease, written)

    async def run(self, lease: int, number: int, written: WrittenTask) -> Trajectory:
        """Waits for the end of a task that a lease starts; cancelling the coroutine cancels the task.

        Raises:
            SubEpisodeError: it has no trajectory.
        """
        name = lease, number
        done = self._waiting[name] = asyncio.get_running_loop().create_future()
        self._connection.send(Said.START, StartOrder(lease, number, self._written.append(written.line())).pack())
        try:
            place = await done
        except asyncio.CancelledError:
            self._connection.send(Said.DROP, LEASE_AND_NUMBER.pack(*name))
            raise
        finally:
            del self._waiting[name]
        trajectory = stored_trajectory(self._folder, place)
        if trajectory.status == "masked":
            raise SubEpisodeError(trajectory.error)
        return trajectory

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


class EpisodeStarter:
    """Starts the sub-episodes of one episode.

    Attributes:
        path: numbers of the started tasks from the collection's task to this episode; empty for the former.
    """

    def __init__(self, tasks: StartedTasks, lease: int, written: WrittenTask):
        self.path = written.path
        self._tasks, self._lease, self._kind = tasks, lease, written.kind
        self._numbers = itertools.count()

    async def start(self, task: Task, kind: str = "") -> Trajectory:
        """Runs a task to its end; see ``Rollout.spawn``."""
        number = next(self._numbers)  # now, so that those that are started together are numbered in their order
        written = WrittenTask(kind or self._kind, task, (*self.path, number))
        return await self._tasks.run(self._lease, number, written)
