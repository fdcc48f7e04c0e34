"""An event loop on a thread of its own, so that a run works in a notebook, whose thread runs one already."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
import contextlib
import threading
from typing import Any


class EventLoop:
    """Runs coroutines one after another, as ``asyncio.Runner`` does, while the caller's thread waits.

    Example:
        >>> with EventLoop() as loop:
        ...     groups = loop.run(rollouts.collect(step))
    """

    def __enter__(self) -> EventLoop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="rollouts", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Cancels what still runs, and ends the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Waits for a coroutine and returns its result, or raises what it raised; it is cancelled with the wait."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _serve(self) -> None:
        with contextlib.closing(self._loop) as loop:
            loop.run_forever()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
