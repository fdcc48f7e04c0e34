"""Event loops of a collection's processes: uvloop's where it is installed (extra ``rollout``), and how late one is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
import gc
import socket
import time
from typing import Any, NamedTuple

import numpy as np

from k2jax.agents.collect.wire import FrameConnection

INTERVAL = 0.01
"""Time between two probes [s]."""


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine to its end, as ``asyncio.run`` does."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run(main)
    return uvloop.run(main)


async def connect(connection: FrameConnection, sock: socket.socket) -> None:
    """Hands a connected stream socket, of Unix or of TCP, to a connection of frames."""
    loop = asyncio.get_running_loop()
    if sock.family == socket.AF_UNIX:
        await loop.create_unix_connection(lambda: connection, sock=sock)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.create_connection(lambda: connection, sock=sock)


_ENDING = 5.0
"""Time after which a task that was cancelled is cancelled again [s]."""


async def end_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks and waits for their ends.

    In Python 3.11 ``asyncio.wait_for`` loses a cancellation that comes together with its result; the task then goes on,
    and is cancelled again.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_ENDING)


class Lag(NamedTuple):
    """Lateness of an event loop [s].

    Attributes:
        p50: half of the callbacks that could have been due at any moment ran this late or less.
        p99: the same for 99 % of them.
        maximum: the latest.
        own_p99: as p99, of the lateness for which this process had the processor: the rest waited for other programs.
        collecting: the longest garbage collection.
        collections: how many there were.
    """

    p50: float
    p99: float
    maximum: float
    own_p99: float
    collecting: float
    collections: int


class LagProbe:
    """Measures the running event loop while ``async with`` lasts.

    A callback is due every ``INTERVAL``. While the loop is blocked, callbacks fall due that nobody sees: each counts
    with the time that it would have waited, or one long pause would count no more than a short one.
    """

    def __init__(self):
        self._late: list[float] = []
        self._own: list[float] = []
        self._processor = 0.0
        self._collections: list[float] = []
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0

    async def __aenter__(self) -> LagProbe:
        gc.callbacks.append(self._on_collection)
        self._loop = asyncio.get_running_loop()
        self._schedule()
        return self

    async def __aexit__(self, *error: object) -> None:
        gc.callbacks.remove(self._on_collection)
        self._timer.cancel()

    def lap(self) -> Lag:
        """What was measured since the last lap, which is forgotten then; called on the event loop."""
        lag = self.lag
        self._late, self._own, self._collections = [], [], []
        return lag

    @property
    def lag(self) -> Lag:
        """What was measured so far, or since the last lap."""
        late = np.array(self._late or [0.0])
        p50, p99 = np.quantile(late, (0.5, 0.99))
        own = np.quantile(self._own or [0.0], 0.99)
        collecting = max(self._collections, default=0.0)
        return Lag(float(p50), float(p99), float(late.max()), float(own), collecting, len(self._collections))

    def _schedule(self) -> None:
        self._due, self._processor = self._loop.time() + INTERVAL, time.process_time()
        self._timer = self._loop.call_at(self._due, self._probe)

    def _probe(self) -> None:
        late = max(0.0, self._loop.time() - self._due)
        own = min(late, time.process_time() - self._processor)
        self._late += [late - missed * INTERVAL for missed in range(int(late / INTERVAL) + 1)]
        self._own += [max(0.0, own - missed * INTERVAL) for missed in range(int(late / INTERVAL) + 1)]
        self._schedule()

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._began = now
        else:
            self._collections.append(now - self._began)


def calm_collector() -> None:
    """Collects once, exempts everything that lives now, and makes later collections rare.

    Most of what a process of the manager allocates lives as long as its task, and reference counts free it. The
    collector of the oldest generation would look at all of it again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)
