"""Sub-episodes: what a running episode starts runs as a task of its own, on whichever worker has room.

The worker writes the task to a file in its shard's folder and tells the scheduler the offset. The scheduler leases it
like any other; its end comes back as the place of a trajectory. A started task ends with the lease of the one that
started it, and an episode that runs again starts the same ones, with the same random numbers.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from k2jax.agents.collect.journal import shard_path, stored_trajectory
from k2jax.agents.collect.queue_file import FILE, WrittenTask
from k2jax.agents.collect.wire import FrameConnection
from k2jax.agents.collect.wire_messages import LEASE_AND_NUMBER, RecordPlace, Said, StartedEnd, StartOrder
from k2jax.agents.errors import SubEpisodeError
from k2jax.agents.spawning import Run, SubEpisode
from k2jax.files.append_log import AppendLog, Lines
from k2jax.trajectory import Trajectory


class SpawnedTasks:
    """The sub-episodes of a worker's leases.

    Args:
        folder: of the collection.
        shard: of the worker.
        connection: to the scheduler.
    """

    def __init__(self, folder: Path, shard: int, connection: FrameConnection):
        self._folder, self._connection = folder, connection
        self._written = AppendLog(shard_path(folder, shard) / FILE, Lines())
        self._waiting: dict[tuple[int, int], asyncio.Future[RecordPlace]] = {}

    def of(self, lease: int) -> Run:
        """What the ``Spawner`` of a lease's episode runs its sub-episodes with."""
        return lambda spawned: self._run(lease, spawned)

    async def _run(self, lease: int, spawned: SubEpisode) -> Trajectory:
        """Waits for the end of a task that a lease spawns; cancelling the coroutine cancels the task.

        Raises:
            SubEpisodeError: it has no trajectory.
        """
        name = lease, number = lease, spawned.path[-1]
        written = WrittenTask(spawned.kind, spawned.task, spawned.path)
        done = self._waiting[name] = asyncio.get_running_loop().create_future()
        self._connection.send(Said.START, StartOrder(lease, number, self._written.append(written.line())).pack())
        try:
            place = await done
        except asyncio.CancelledError:
            self._connection.send(Said.DROP, LEASE_AND_NUMBER.pack(*name))
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
