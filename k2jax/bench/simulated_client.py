"""A simulated engine in the place of ``ContinuousClient``: requests for thousands of episodes around a real trainer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
import contextlib
import heapq
import itertools
import time
from typing import Any

import numpy as np

from k2jax.agents.collect.simulated import SimulatedEngine, Simulation
from k2jax.client import Completion, Sampling
from k2jax.inference import ContinuousClient
from k2jax.inference.engine import Engine
from k2jax.inference.stats import EngineStats
from k2jax.text.tokenizer import Tokenizer


class SimulatedContinuous(SimulatedEngine):
    """A simulated engine whose time stands still while it is held.

    Args:
        engine: of the policy, of which it has the version and the number of slots.
        tokenizer: its vocabulary.
        simulation: times and numbers.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, simulation: Simulation):
        super().__init__(tokenizer, simulation)
        self._engine, self._depth, self._tokens = engine, 0, 0
        self._passed, self._since = 0.0, None  # its time until it was last held, and when it was released
        self._due: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def busy_seconds(self) -> float:
        """Time for which it was not held [s]."""
        return self._passed + (0.0 if self._since is None else time.monotonic() - self._since)

    async def generate(self, prompt: Sequence[int], sampling: Sampling, **options: Any) -> Completion:
        """See ``SimulatedEngine``; its tokens are of the engine's version."""
        completion = await super().generate(prompt, sampling, **options)
        self._tokens += len(completion.tokens)
        return completion._replace(versions=np.full(len(completion.tokens), self._engine.version))

    async def rest(self, seconds: float) -> None:
        """See ``SimulatedEngine``."""
        self._loop = asyncio.get_running_loop()
        done, due = self._loop.create_future(), self.busy_seconds + seconds
        heapq.heappush(self._due, (due, next(self._numbers), done))
        if self._due[0][0] == due:
            self._schedule()
        await done

    @contextlib.contextmanager
    def generating(self) -> Iterator[None]:
        """See ``ContinuousClient``."""
        self._depth += 1
        if self._depth == 1:
            self._since = time.monotonic()
            self._schedule_soon()
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._passed, self._since = self.busy_seconds, None
                self._schedule_soon()

    async def gather(self, *coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
        """See ``ContinuousClient``."""
        return await ContinuousClient.gather(self, *coroutines)

    async def call(self, function: Callable[[Engine], Any]) -> Any:
        """See ``ContinuousClient``."""
        return await asyncio.to_thread(function, self._engine)

    def stats(self) -> EngineStats:
        """Those of the engine, with what is simulated."""
        slots = self._engine.stats().slots
        names = ("waiting", "paused", "pages_in_use", "pages_cached", "prompt_tokens", "prompt_tokens_cached", "steps")
        counts = {"running": self.running, "tokens_generated": self._tokens, "pages": 1}
        return EngineStats(slots=slots, **counts, **dict.fromkeys(names, 0))

    def check(self) -> None:
        """It never fails."""

    def stop(self) -> None:
        """It has no thread."""

    def _schedule_soon(self) -> None:
        """From another thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._schedule)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._since is not None and self._due:
            self._timer = self._loop.call_later(max(0.0, self._due[0][0] - self.busy_seconds), self._answer)

    def _answer(self) -> None:
        now = self.busy_seconds
        while self._due and self._due[0][0] <= now:
            *_, done = heapq.heappop(self._due)
            if not done.done():  # cancelled meanwhile
                done.set_result(None)
        self._schedule()
