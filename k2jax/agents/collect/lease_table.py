"""Which worker runs which task: a state machine without clocks, processes or files.

A task waits, is leased to a worker, may be paused, and ends once: ``done``, ``masked`` after failures, or
``cancelled``. Its events are calls; what has to happen in the world is in their return values. These hold after every
call, in any order of calls, and tests/agents/collect/test_lease_table.py checks them:

- a task ends exactly once, whatever workers say about leases that they no longer have;
- a lease is held until its worker gives it back or is lost, and no lease belongs to a lost worker;
- the tasks that a running task has started end with it, and with the loss, failure or pause of its lease;
- the oldest waiting task is leased first. Tasks that a running one has started are as old as that one, and a worker
  takes them beyond its capacity: the running one holds a lease and waits for them.
"""

from __future__ import annotations

from collections.abc import Hashable
import dataclasses
import heapq
from typing import Literal, NamedTuple

End = Literal["done", "masked", "cancelled"]
Order = tuple[int, ...]
"""Age of a task: (step, prompt, sample) or the like; that of a started task begins with its starter's."""


class Lease(NamedTuple):
    """A task in the hands of a worker.

    Attributes:
        number: unique; a task that is leased again gets another one.
        task: name of the task.
        worker: name of the worker.
        paused: where the paused episode lies, as ``pause`` was told; None to begin.
    """

    number: int
    task: Hashable
    worker: Hashable
    paused: Hashable = None


class Ended(NamedTuple):
    """The end of a task; it is returned once for every task.

    Attributes:
        task: name of the task.
        end: how.
        result: what ``finish`` was given; None for other ends.
        reason: why a task is masked.
        lease: the lease that its worker still holds and has to give back; None where there is none.
    """

    task: Hashable
    end: End
    result: Hashable = None
    reason: str = ""
    lease: Lease | None = None


@dataclasses.dataclass(slots=True)
class _Entry:
    """A task that has not ended."""

    order: Order
    parent: Hashable | None
    _: dataclasses.KW_ONLY
    lease: int | None = None
    children: set[Hashable] | None = None
    started: int = 0
    failures: int = 0
    losses: int = 0
    paused: Hashable = None
    push: int | None = None
    """Number of its place in the queue; None where it does not wait."""


ATTEMPTS = 3
"""Failures of the infrastructure after which a task is masked."""


class LeaseTable:
    """Tasks, workers and leases; see the module's text.

    Args:
        attempts: failures of the infrastructure after which a task is masked.
        losses: lost workers after which a task is masked: it may be what kills them.

    Attributes:
        leases: all that are held, by number; those of cancelled tasks too, until their workers give them back.
        running: how many tasks are leased and have not ended.
    """

    def __init__(self, attempts: int = ATTEMPTS, losses: int = 16):
        if attempts < 1 or losses < 1:
            raise ValueError("a task needs at least one attempt")
        self.leases: dict[int, Lease] = {}
        self.running = 0
        self._attempts, self._losses = attempts, losses
        self._entries: dict[Hashable, _Entry] = {}
        self._queue: list[tuple[Order, int, Hashable]] = []
        self._started_queue: list[tuple[Order, int, Hashable]] = []
        self._free: dict[Hashable, int] = {}
        self._held: dict[Hashable, set[int]] = {}
        self._numbers = self._pushes = 0

    def __len__(self) -> int:
        """How many tasks have not ended."""
        return len(self._entries)

    def join(self, worker: Hashable, capacity: int) -> None:
        """A worker is ready for ``capacity`` leases at a time."""
        if worker in self._free:
            raise ValueError(f"the worker {worker!r} already exists")
        self._free[worker], self._held[worker] = capacity, set()

    def add(self, task: Hashable, order: Order) -> None:
        """A task waits to be leased."""
        self._add(task, order, None)

    def start(self, parent: int, task: Hashable) -> bool:
        """The task of the lease ``parent`` starts another, which ends with it; False where the lease is not valid.

        A name may be used again after its task has ended: a task that is run again starts the same ones.
        """
        lease = self.leases.get(parent)
        if lease is None or not self._is_current(lease):
            return False
        entry = self._entries[lease.task]
        self._add(task, (*entry.order, entry.started), lease.task)
        entry.started += 1
        entry.children = (entry.children or set()) | {task}
        return True

    def grant(self, started_only: bool = False) -> Lease | None:
        """Leases the oldest waiting task to the worker with the most room; None where none waits or no room is left.

        Args:
            started_only: only tasks that a running one has started are leased: it waits for them.
        """
        self._drop_ended(self._queue)
        self._drop_ended(self._started_queue)
        if not self._free:
            return None
        worker = max(self._free, key=self._free.__getitem__)
        has_room = self._free[worker] > 0 and not started_only
        heaps = [heap for heap in (self._started_queue, self._queue if has_room else []) if heap]
        if not heaps:
            return None
        *_, task = heapq.heappop(min(heaps, key=lambda heap: heap[0]))
        entry = self._entries[task]
        lease = Lease(self._numbers, task, worker, entry.paused)
        self._numbers += 1
        entry.lease, entry.push = lease.number, None
        self.leases[lease.number] = lease
        self._held[worker].add(lease.number)
        self._free[worker] -= 1
        self.running += 1
        return lease

    def finish(self, number: int, result: Hashable = None) -> list[Ended]:
        """A worker gives a lease back: its task is done. A lease that is not valid any more changes nothing."""
        lease = self._released(number)
        return [] if lease is None else self._end(lease.task, "done", result)

    def fail(self, number: int, reason: str = "") -> list[Ended]:
        """A worker gives a lease back after a failure of the infrastructure: its task waits again, or is masked."""
        lease = self._released(number)
        if lease is None:
            return []
        entry = self._entries[lease.task]
        entry.failures += 1
        return self._again(lease.task, reason if entry.failures >= self._attempts else None)

    def pause(self, number: int, place: Hashable) -> list[Ended]:
        """A worker gives a lease back: its task continues from ``place`` after ``wake``."""
        lease = self._released(number)
        if lease is None:
            return []
        self._entries[lease.task].paused = place
        return self._end_children(lease.task)

    def wake(self, task: Hashable) -> bool:
        """A paused task waits to be leased; False where it is not paused."""
        entry = self._entries.get(task)
        if entry is None or entry.push is not None or entry.lease is not None:
            return False
        self._push(task, entry)
        return True

    def lose(self, worker: Hashable) -> list[Ended]:
        """A worker is gone with all its leases; their tasks wait again, from where they were last paused."""
        del self._free[worker]
        lost = [self.leases.pop(number) for number in sorted(self._held.pop(worker))]
        tasks = [lease.task for lease in lost if self._is_current(lease)]
        for task in tasks:
            self._entries[task].lease = None
            self._entries[task].losses += 1
            self.running -= 1
        ends = []
        for task in tasks:
            if task in self._entries:  # a task that had started it may just have been taken back
                losses = self._entries[task].losses
                reason = f"WorkerLostError: {losses} workers were lost that ran it"
                ends += self._again(task, reason if losses >= self._losses else None)
        return ends

    def cancel(self, task: Hashable) -> list[Ended]:
        """Ends a task and all that it has started; nothing where it has ended. Workers give its leases back later."""
        return self._end(task, "cancelled") if task in self._entries else []

    def _add(self, task: Hashable, order: Order, parent: Hashable | None) -> None:
        if task in self._entries:
            raise ValueError(f"the task {task!r} already exists")
        entry = self._entries[task] = _Entry(order, parent)
        self._push(task, entry)

    def _push(self, task: Hashable, entry: _Entry) -> None:
        entry.push = self._pushes
        self._pushes += 1
        heap = self._queue if entry.parent is None else self._started_queue
        heapq.heappush(heap, (entry.order, entry.push, task))

    def _drop_ended(self, heap: list[tuple[Order, int, Hashable]]) -> None:
        """Takes tasks off the queue's head that ended while they waited; a name may have come back since."""
        while heap:
            _, push, task = heap[0]
            entry = self._entries.get(task)
            if entry is not None and entry.push == push:
                return
            heapq.heappop(heap)

    def _is_current(self, lease: Lease) -> bool:
        entry = self._entries.get(lease.task)
        return entry is not None and entry.lease == lease.number

    def _released(self, number: int) -> Lease | None:
        """Takes a lease back; returns it where its task has not ended."""
        lease = self.leases.pop(number, None)
        if lease is None:
            return None
        self._held[lease.worker].discard(number)
        self._free[lease.worker] += 1
        if not self._is_current(lease):
            return None
        self._entries[lease.task].lease = None
        self.running -= 1
        return lease

    def _again(self, task: Hashable, masked: str | None) -> list[Ended]:
        if masked is not None:
            return self._end(task, "masked", reason=masked)
        ends = self._end_children(task)
        self._push(task, self._entries[task])
        return ends

    def _end(self, task: Hashable, end: End, result: Hashable = None, reason: str = "") -> list[Ended]:
        ends = self._end_children(task)
        entry = self._entries.pop(task)
        siblings = self._entries[entry.parent].children if entry.parent in self._entries else None
        if siblings is not None:
            siblings.discard(task)
        lease = None if entry.lease is None else self.leases[entry.lease]
        self.running -= lease is not None
        return [*ends, Ended(task, end, result, reason, lease)]

    def _end_children(self, task: Hashable) -> list[Ended]:
        children, self._entries[task].children = self._entries[task].children, None
        ends = []
        for child in sorted(children or (), key=lambda name: self._entries[name].order):
            ends += self._end(child, "cancelled")
        return ends
