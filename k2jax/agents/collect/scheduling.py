"""Leases in the hands of worker processes: workers are started and replaced, orders go out and reports come back.

``LeaseScheduler`` acts on what the lease table decides and knows neither where tasks come from nor what becomes of
their results: those are a collection's (``manager``) or a training run's (``pool``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
import asyncio
from collections.abc import Mapping
import json
from pathlib import Path
import sys
from typing import Any

from k2jax.agents.collect.admission import Admission
from k2jax.agents.collect.event_loop import LagProbe, connect
from k2jax.agents.collect.journal import SHARDS
from k2jax.agents.collect.launchers import LocalLauncher, WorkerHandle, WorkerLauncher
from k2jax.agents.collect.lease_table import Ended, Lease, LeaseTable
from k2jax.agents.collect.monitoring import ChromeTrace
from k2jax.agents.collect.wire import VERSION, FrameConnection, other_version, version_of
from k2jax.agents.collect.wire_messages import (
    LEASE_AND_NUMBER,
    NUMBER,
    LeaseOrder,
    LeaseReport,
    StartedEnd,
    StartOrder,
    WorkerMessage,
    unpack_carried,
)
from k2jax.agents.collect.worker import JOB
from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic

GRANTS = 256
"""Leases that are given in one turn of the event loop."""
HIRING_PAUSE = 10.0
"""Time between two attempts to replace a worker [s]."""
_DEAD_ON_ARRIVAL = 3
"""Number of workers in a row whose death before they are ready ends the run."""


class _ConnectedWorker:
    """A worker with its connection."""

    def __init__(self, shard: int, handle: WorkerHandle):
        self.shard, self.handle = shard, handle
        self.connection: FrameConnection | None = None
        self.ready = False


class LeaseScheduler(ABC):
    """Gives tasks to workers while ``async with`` lasts; see the module's text.

    Args:
        folder: of the workers' shards and of their job.
        runner: path ``module:attribute`` of what makes a runner in every worker, see ``k2jax.agents.collect.worker``.
        options: of the maker, JSON values.
        workers: processes.
        capacity: coroutines of each.
        trace: receives what happens to leases; None for no trace.
        admission: how many tasks may run at a time; None for as many as the workers hold.
        launcher: starts workers, on this machine by default.

    Attributes:
        worker: path ``module:attribute`` of the class of the workers.
        probe: lateness of this process, while somebody measures it.
        max_running: the most tasks that ran at a time.
        lost_workers: workers that died.
        started: sub-episodes that tasks have started.
    """

    worker = "k2jax.agents.collect.worker:RolloutWorker"

    def __init__(
        self,
        folder: Path | str,
        *,
        runner: str,
        options: Mapping[str, Any],
        workers: int = 2,
        capacity: int = 4096,
        admission: Admission | None = None,
        launcher: WorkerLauncher | None = None,
        trace: ChromeTrace | None = None,
    ):
        if workers < 1 or capacity < 1:
            raise UserError("a collection needs at least one worker, and each a capacity of at least one")
        self._folder, self._workers, self._capacity = Path(folder), workers, capacity
        self._job = {"worker": self.worker, "runner": runner, "options": dict(options)}
        self._table = LeaseTable()
        self._admission, self._trace, self._launcher = admission, trace, launcher or LocalLauncher()
        self._started: dict[tuple[int, ...], tuple[int, StartOrder]] = {}  # by name: the starter's shard
        self._processes: dict[int, _ConnectedWorker] = {}
        self._dead_on_arrival = self.lost_workers = self.max_running = self.started = 0
        self._pumping = self._closing = False
        self._hiring: set[asyncio.Task[None]] = set()
        self.probe = LagProbe()

    @abstractmethod
    def order(self, lease: Lease) -> LeaseOrder:
        """What a worker is told of a lease on one of the scheduler's own tasks."""

    @abstractmethod
    def ended(self, ended: Ended) -> None:
        """One of the scheduler's own tasks has ended; the result of one that is done is a report and its bytes."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Nothing can go on: a mistake of the user, or of the program."""

    @property
    def needed(self) -> bool:
        """Whether a worker that died has to be replaced."""
        return len(self._table) > 0

    async def __aenter__(self) -> Any:
        """Writes the job; workers are started by ``hire``."""
        write_atomic(self._folder / JOB, json.dumps(self._job).encode(), 0o600)  # it may have the keys of engines
        shards = self._folder / SHARDS
        shards.mkdir(exist_ok=True)
        self._shards = 1 + max((int(path.name) for path in shards.iterdir() if path.name.isdecimal()), default=-1)
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Ends the workers; what they are doing is not lost, since it never counted."""
        self._closing = True
        for hiring in list(self._hiring):
            hiring.cancel()
        await asyncio.gather(*self._hiring, return_exceptions=True)
        for worker in self._processes.values():
            if worker.connection is not None:
                worker.connection.close()
            worker.handle.socket.close()
        waiting = [asyncio.to_thread(worker.handle.end) for worker in self._processes.values()]
        await asyncio.gather(*waiting)
        self._processes.clear()

    def observe(self, pages: float, preempted: bool) -> None:
        """What an engine says of its cache, see ``Admission.observe``; more tasks may run from now on, or fewer."""
        if self._admission is not None:
            self._admission.observe(pages, self._table.running, preempted)
            self._pump_soon()

    def worker_processes(self) -> list[int]:
        """Process ids of the workers, for tests that kill them."""
        return [worker.handle.pid for worker in self._processes.values() if worker.ready]

    @property
    def running(self) -> int:
        """Tasks that workers have."""
        return self._table.running

    @property
    def waiting(self) -> int:
        """Tasks that have not ended and that no worker has."""
        return len(self._table) - self._table.running

    async def hire(self) -> None:
        """Starts workers up to the number that there are to be.

        Raises:
            UserError: they do not start.
        """
        while len(self._processes) < self._workers:
            await self._hire()

    async def _hire(self) -> None:
        shard, self._shards = self._shards, self._shards + 1
        worker = _ConnectedWorker(shard, await self._launcher.start(self._folder, shard))
        self._processes[shard] = worker
        connection = FrameConnection(
            lambda kind, body: self._on_frame(worker, kind, body), lambda: self._on_end(worker)
        )
        worker.connection = connection
        await connect(connection, worker.handle.socket)

    async def _hire_again(self) -> None:
        """Replaces a lost worker; while others work and none can take its place, such as on a lost node, it waits."""
        try:
            while True:
                try:
                    return await self._hire()
                except UserError as error:
                    if not any(worker.ready for worker in self._processes.values()):
                        raise
                    print(f"warning: no worker takes the place of a lost one: {error}", file=sys.stderr)
                await asyncio.sleep(HIRING_PAUSE)
        except Exception as error:  # nobody waits for this task
            self.fail(error)

    def _on_frame(self, worker: _ConnectedWorker, kind: int, body: bytes) -> None:
        """Acts on a frame; an error ends the collection, where asyncio would end the connection and continue."""
        try:
            self._act(worker, kind, body)
        except Exception as error:
            self.fail(error)

    def _act(self, worker: _ConnectedWorker, kind: int, body: bytes) -> None:
        if kind == WorkerMessage.READY:
            if version_of(body) != VERSION:
                raise UserError(other_version("a worker", version_of(body)))
            worker.ready, self._dead_on_arrival = True, 0
            self._table.join(worker.shard, self._capacity)
            if self._trace is not None:
                self._trace.count(running=self.running, waiting=self.waiting)
        elif kind == WorkerMessage.DONE:
            self._done(LeaseReport.unpack(body))
        elif kind == WorkerMessage.CARRIED:
            self._done(*unpack_carried(body))
        elif kind == WorkerMessage.RELEASED:
            self._hand_on(self._table.fail(*NUMBER.unpack(body), "the worker gave the lease back"))
        elif kind == WorkerMessage.FAILED:
            reason = body[NUMBER.size :].decode(errors="replace")
            self._hand_on(self._table.fail(*NUMBER.unpack_from(body), reason))
        elif kind == WorkerMessage.START:
            self._start(worker, StartOrder.unpack(body))
        elif kind == WorkerMessage.DROP:
            lease, number = LEASE_AND_NUMBER.unpack(body)
            if lease in self._table.leases:
                self._hand_on(self._table.cancel((*self._table.leases[lease].task, number)))
        elif kind == WorkerMessage.FATAL:
            text = body[1:].decode(errors="replace")
            self.fail(UserError(text) if body[:1] == b"u" else RuntimeError(f"in a worker:\n{text}"))
        self._pump_soon()

    def _start(self, worker: _ConnectedWorker, order: StartOrder) -> None:
        """A task starts another; nothing where it has ended meanwhile, and its lease is on the way back."""
        if order.lease in self._table.leases:
            name = (*self._table.leases[order.lease].task, order.number)
            if self._table.start(order.lease, name):
                self._started[name] = worker.shard, order
                self.started += 1

    def _done(self, report: LeaseReport, data: bytes = b"") -> None:
        if self._trace is not None:
            self._trace.released(report.number, vars(report))
        if report.status == "unfinished":
            lease = self._table.leases.get(report.number)
            self._hand_on(self._table.pause(report.number, report.place))
            if lease is not None:
                self._table.wake(lease.task)
        else:
            self._hand_on(self._table.finish(report.number, (report, data)))

    def _on_end(self, worker: _ConnectedWorker) -> None:
        if self._closing:
            return
        del self._processes[worker.shard]
        worker.handle.socket.close()
        self._loop.run_in_executor(None, worker.handle.end)
        self.lost_workers += 1
        if worker.ready:
            self._hand_on(self._table.lose(worker.shard))
        else:
            self._dead_on_arrival += 1
        if self._dead_on_arrival >= _DEAD_ON_ARRIVAL:
            self.fail(UserError("workers end before they are ready; their error output says why"))
        elif self.needed:
            self._hiring.add(hiring := self._loop.create_task(self._hire_again()))
            hiring.add_done_callback(self._hiring.discard)

    def _hand_on(self, ends: list[Ended]) -> None:
        for ended in ends:
            if ended.lease is not None and ended.lease.worker in self._processes:
                worker = self._processes[ended.lease.worker]
                worker.connection.send(WorkerMessage.REVOKE, NUMBER.pack(ended.lease.number))
            if ended.task in self._started:
                self._tell_starter(ended)
            else:
                self.ended(ended)

    def _tell_starter(self, ended: Ended) -> None:
        """Tells the worker of the task that had started an ended one; nothing where that worker is lost."""
        shard, order = self._started.pop(ended.task)
        if ended.end != "cancelled" and shard in self._processes:
            place = ended.result[0].place if ended.end == "done" else None
            message = StartedEnd(order.lease, order.number, place, ended.reason)
            self._processes[shard].connection.send(WorkerMessage.STARTED_END, message.pack())

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Gives leases while there is room, some at a time."""
        self._pumping = False
        for _ in range(GRANTS):
            full = self._admission is not None and self._table.running >= self._admission.limit
            lease = self._table.grant(started_only=full)
            if lease is None:
                break
            self._give(lease)
        else:
            self._pump_soon()
        self.max_running = max(self.max_running, self._table.running)

    def _give(self, lease: Lease) -> None:
        if lease.task in self._started:
            starter, started = self._started[lease.task]
            order = LeaseOrder(lease.number, lease.task[:3], started.line, lease.paused, starter)
        else:
            order = self.order(lease)
        self._processes[lease.worker].connection.send(WorkerMessage.LEASE, order.pack())
        if self._trace is not None:
            self._trace.leased(lease.number, lease.worker)
