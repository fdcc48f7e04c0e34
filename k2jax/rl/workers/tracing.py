"""One iteration as a trace of events: its phases, its episodes with what they waited for, and the engine.

It begins with the iteration's first token and ends when its checkpoint was begun: ui.perfetto.dev and chrome://tracing
show what waits for what. A row of ``episodes`` is one place for an episode at a time. What an episode waited for is
known when it ends; of one that goes on into the next iteration the trace has the begin and the place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
import contextlib
import itertools
from pathlib import Path
import time
from typing import Any

from k2jax.agents.collect.monitoring import ChromeTrace
from k2jax.agents.episode_key import EpisodeKey
from k2jax.inference import ContinuousClient

PHASES, EPISODES = 0, 1
"""Numbers of the trace's processes."""
INTERVAL = 0.05
"""Time between two looks at the engine [s]."""


class IterationTrace:
    """The trace of one iteration of a run; before and after it nothing is kept but when running episodes began.

    Args:
        step: the iteration; 0 is none.
        workdir: of the run, where ``trace-STEP.json`` is written.
        client: over the engine.
    """

    def __init__(self, step: int, workdir: Path, client: ContinuousClient):
        self._step, self._workdir, self._client = step, workdir, client
        self._trace: ChromeTrace | None = None
        self._numbers = itertools.count()
        self._running: dict[int, tuple[EpisodeKey, float]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def begin(self, step: int) -> None:
        """The iteration ``step`` begins; called on the event loop."""
        if step != self._step:
            return
        self._trace = ChromeTrace()
        for number in self._running:
            self._trace.leased(number, EPISODES)
        self._looking = asyncio.ensure_future(self._look())

    async def end(self, step: int) -> None:
        """The iteration ``step`` is over: its trace is written; called on the event loop."""
        if step != self._step or self._trace is None:
            return
        trace, self._trace = self._trace, None
        self._looking.cancel()
        for number, (key, began) in self._running.items():
            trace.released(number, _details(key, began) | {"status": "under way"})
        names = {PHASES: "iteration", EPISODES: "episodes"}
        await asyncio.to_thread(trace.write, self._workdir / f"trace-{step}.json", names)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A part of the iteration, for a ``with`` block."""
        trace = self._trace
        if trace is None:
            yield
            return
        with trace.span(name, PHASES):
            yield

    @contextlib.contextmanager
    def episode(self, key: EpisodeKey) -> Iterator[dict[str, Any]]:
        """An episode, for a ``with`` block, which fills in what is to be shown of it."""
        number, began = next(self._numbers), time.monotonic()
        self._running[number] = key, began
        if self._trace is not None:
            self._trace.leased(number, EPISODES)
        more: dict[str, Any] = {}
        try:
            yield more
        finally:
            del self._running[number]
            if self._trace is not None:
                self._trace.released(number, _details(key, began) | more)

    async def _look(self) -> None:
        """Draws how busy the engine is."""
        busy, then = self._client.busy_seconds, time.monotonic()
        while True:
            await asyncio.sleep(INTERVAL)
            stats, now = self._client.stats(), time.monotonic()
            share = (self._client.busy_seconds - busy) / (now - then)
            busy, then = self._client.busy_seconds, now
            self._trace.count("engine", busy=min(1.0, share), running=stats.running, waiting=stats.waiting)


def _details(key: EpisodeKey, began: float) -> dict[str, Any]:
    return {"purpose": key.purpose, "key": list(key.place), "seconds": time.monotonic() - began}
