"""An engine that steps whenever it has work, for episodes that do not wait for one another.

Between two phases of generation the engine is held: requests stay where they are, with their tokens and without a
cache, and go on under whatever weights the engine has when it is released. Each token records the version that chose
it. Which sequences share a program depends on time, so that two runs agree in distribution and not in bits; see
``lockstep`` for the other client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
import contextlib
from typing import Any

import jax

from k2jax.inference.client import EngineClient
from k2jax.inference.engine import Engine
from k2jax.inference.stats import EngineStats
from k2jax.inference.worker import Worker

REST_ON_CPU = 8.0
"""Rest before a step of few sequences on a CPU, in steps: sandboxes, workers and verifiers compute there, too."""


class ContinuousClient(EngineClient):
    """Generates for coroutines on one event loop while ``generating`` lasts; requests made before it wait for it.

    Example:
        >>> client = ContinuousClient(engine)
        >>> with client.generating():
        ...     groups = event_loop.run(sampled())
        >>> engine.update_params(leaves, version)  # nobody else uses the engine here

    Args:
        engine: nobody else may use it while ``generating`` lasts.
    """

    def __init__(self, engine: Engine):
        super().__init__(Worker(engine, rest=REST_ON_CPU if jax.default_backend() == "cpu" else 0.0))
        self._worker.hold()
        self._depth = 0

    @property
    def engine(self) -> Engine:
        """The engine, which is the caller's while nothing generates."""
        return self._worker.engine

    def exchange(self, engine: Engine) -> None:
        """Goes on with another engine, while nothing generates; see ``Worker.exchange``."""
        self._worker.exchange(engine)

    @property
    def busy_seconds(self) -> float:
        """Time for which the engine has stepped so far [s]."""
        return self._worker.busy_seconds

    def stats(self) -> EngineStats:
        """The engine's counters, as of the last step."""
        return self._worker.stats()

    def check(self) -> None:
        """Raises RuntimeError where the engine has failed."""
        if self._worker.failed is not None:
            raise RuntimeError("the engine has failed") from self._worker.failed

    @contextlib.contextmanager
    def generating(self) -> Iterator[None]:
        """Lets the engine step for a ``with`` block, which may stand inside of another one."""
        self._depth += 1
        if self._depth == 1:
            self._worker.release()
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                with contextlib.suppress(RuntimeError):  # it has failed, and whoever generated was told
                    self._worker.hold()

    async def gather(self, *coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
        """Runs coroutines at the same time; raises the first error, in the order given, after all have ended."""
        results = await asyncio.gather(*coroutines, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    async def call(self, function: Callable[[Engine], Any]) -> Any:
        """Runs ``function(engine)`` between two steps, and returns what it returned."""
        return await asyncio.to_thread(self._worker.call, function)

    def stop(self) -> None:
        """Cancels every request and ends the engine's thread."""
        self._worker.stop()
