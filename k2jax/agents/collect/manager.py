"""The scheduling process of a collection: it gives tasks to worker processes and hands on their ends, once each.

It reads no token, scores nothing and parses no JSON of trajectories: tasks are offsets in a file, results are places in
the workers' stores, and everything between is the lease table's decisions. A worker that dies is replaced, and its
leases go to others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from k2jax.agents.collect.event_loop import calm_collector
from k2jax.agents.collect.journal import Emission, Journal
from k2jax.agents.collect.lease_table import Ended, Lease
from k2jax.agents.collect.queue_file import QueuedTask
from k2jax.agents.collect.scheduling import LeaseScheduler
from k2jax.agents.collect.wire_messages import Key, LeaseOrder


class RolloutManager(LeaseScheduler):
    """Collects the trajectories of tasks in a folder; a folder whose collection was killed continues.

    Example:
        >>> runner = "k2jax.agents.collect.episodes:EpisodeRunner"
        >>> async with RolloutManager("runs/rollouts", runner=runner, options={}) as m:
        ...     async for emission in m.collect(queued_samples("runs/rollouts", samples=8)):
        ...         print(emission.key, emission.reward)

    Args:
        folder: of the collection; the file of tasks is there.
        choices: see ``LeaseScheduler``.

    Attributes:
        emitted: keys of all tasks that have ended, in this process or an earlier one.
    """

    def __init__(self, folder: Path | str, **choices: Any):
        super().__init__(folder, **choices)
        self._lines: dict[Key, int] = {}
        self._ends: asyncio.Queue[Emission | BaseException] = asyncio.Queue()

    async def __aenter__(self) -> RolloutManager:
        self._journal = Journal(self._folder)
        self.emitted = {emission.key for emission in self._journal.emissions}
        self.earlier = self._journal.emissions
        return await super().__aenter__()

    async def __aexit__(self, *error: object) -> None:
        """Ends the workers; what they are doing is not lost, since it never counted."""
        await super().__aexit__(*error)
        self._journal.close()

    async def collect(self, tasks: Iterable[QueuedTask]) -> AsyncIterator[Emission]:
        """Runs tasks and yields the end of each as it comes; those that have ended before are left out.

        Raises:
            UserError: a task cannot be run, or workers do not start.
            RuntimeError: a worker met an error that is a mistake of the program.
        """
        for key, line in tasks:
            if key not in self.emitted:
                self._lines[key] = line
                self._table.add(key, key)
        calm_collector()
        async with self.probe:
            if len(self._table):
                await self.hire()
            while len(self._table) or not self._ends.empty():
                item = await self._ends.get()
                if isinstance(item, BaseException):
                    raise item
                yield item

    def cancel(self, key: Key) -> None:
        """Ends a task that has not ended; its worker stops it."""
        self._hand_on(self._table.cancel(key))

    def fail(self, error: Exception) -> None:
        """Ends ``collect`` with an error."""
        self._ends.put_nowait(error)

    def order(self, lease: Lease) -> LeaseOrder:
        """See ``LeaseScheduler``."""
        return LeaseOrder(lease.number, lease.task, self._lines[lease.task], lease.paused)

    def ended(self, ended: Ended) -> None:
        """Writes the end to the journal and hands it on."""
        if ended.end == "done":
            report, _ = ended.result
            emission = Emission.of_report(ended.task, report)
        else:
            emission = Emission(ended.task, ended.end)
        try:
            self._journal.append(emission)
        except OSError as error:  # a full disk; what is not in the journal has not happened
            self.fail(error)
            return
        self.emitted.add(emission.key)
        self._lines.pop(emission.key, None)
        self._ends.put_nowait(emission)
