"""Episodes of a training run in worker processes: each is ordered by itself and comes back as a trajectory.

Orders and trajectories travel on the workers' connections, so that workers need no file of the run, on this machine or
on another. Nothing is kept between two starts: what a run has to keep, it writes (see ``rl.workers.group_log``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import itertools
from pathlib import Path
from typing import Any

from k2jax.agents.collect.lease_table import Ended, Lease
from k2jax.agents.collect.queue_file import OrderedEpisode
from k2jax.agents.collect.scheduling import LeaseScheduler
from k2jax.agents.collect.wire_messages import Key, LeaseOrder, LeaseReport
from k2jax.agents.collect.worker import Waits
from k2jax.trajectory import Trajectory
from k2jax.trajectory.encoding import decode


class LeasedPool(LeaseScheduler):
    """Runs the episodes of a run on workers while ``async with`` lasts.

    Args:
        folder: of the workers' shards, where sub-episodes lie.
        on_failure: is told what ends the run, also while nobody waits for an episode.
        choices: see ``LeaseScheduler``.
    """

    def __init__(self, folder: Path | str, on_failure: Callable[[Exception], None], **choices: Any):
        super().__init__(folder, **choices)
        self._on_failure = on_failure
        self._serials = itertools.count()
        self._ordered: dict[Key, tuple[OrderedEpisode, asyncio.Future[Ended]]] = {}

    @property
    def needed(self) -> bool:
        """Workers are replaced at all times: the next order is on the way."""
        return True

    async def run(self, episode: OrderedEpisode) -> tuple[Trajectory, Waits]:
        """Waits for an episode, which is masked where its workers fail again and again.

        Raises:
            UserError, RuntimeError: see ``on_failure``; every episode that is under way raises it.
        """
        name, done = (next(self._serials), 0, episode.key.sample), self._loop.create_future()
        self._ordered[name] = episode, done
        self._table.add(name, episode.key.place)
        self._pump_soon()
        try:
            ended = await done
        except asyncio.CancelledError:
            self._hand_on(self._table.cancel(name))
            raise
        finally:
            del self._ordered[name]
        if ended.end == "masked":
            task, key = episode.written.task, episode.key
            masked = {"status": "masked", "error": ended.reason}
            return Trajectory(task.id, task.domain, key.place, purpose=key.purpose, **masked), Waits()
        report, data = ended.result
        return await asyncio.to_thread(decode, data), _waits(report)

    def order(self, lease: Lease) -> LeaseOrder:
        """See ``LeaseScheduler``."""
        episode, _ = self._ordered[lease.task]
        return LeaseOrder(lease.number, lease.task, -1, text=episode.written.line().decode())

    def ended(self, ended: Ended) -> None:
        """See ``LeaseScheduler``."""
        _, done = self._ordered.get(ended.task, (None, None))
        if done is not None and not done.done():
            done.set_result(ended)

    def fail(self, error: Exception) -> None:
        """Ends every episode that is under way with an error."""
        self._on_failure(error)
        for _, done in self._ordered.values():
            if not done.done():
                done.set_exception(error)


def _waits(report: LeaseReport) -> Waits:
    return Waits(report.engine, report.environment, report.scoring)
