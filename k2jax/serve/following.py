"""A server whose weights are those of a run that trains now: every version that the run publishes, soon after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import threading

from k2jax.errors import UserError
from k2jax.inference.worker import Worker
from k2jax.rl.sync.stored_weights import current_of, load_current

INTERVAL = 0.5
"""Time between two looks at the store, and between two tries to read a damaged version [s]."""


class WeightFollower:
    """Takes each new version of a store between two steps of an engine, until ``stop``.

    Requests that run go on under the new weights, after their cache was computed anew. When the run ends, the last
    version is served on. A version that is damaged stops generation until a whole one is there.

    Args:
        worker: of the engine, whose weights are the store's current ones.
        folder: of the store.
        say: is told of every version that is taken, and of every failure.
    """

    def __init__(self, worker: Worker, folder: Path, say: Callable[[str], None]):
        self._worker, self._folder, self._say = worker, folder, say
        self._taken = self._current()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="weights", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Follows no longer; returns when the engine is the worker's alone."""
        self._stopped.set()
        self._thread.join()

    def _current(self) -> str | None:
        """What tells the current version from others: a run that is resumed publishes the same numbers again."""
        current = current_of(self._folder)
        return None if current is None else current["folder"]

    def _follow(self) -> None:
        while not self._stopped.wait(INTERVAL):
            try:
                current = self._current()
                if current is None or current == self._taken:
                    continue
                self._worker.hold()
            except (OSError, ValueError) as error:
                self._say(f"the published weights cannot be read: {error}")
                continue
            except RuntimeError:  # the worker has ended, and with it the server
                return
            try:
                self._take()
            finally:
                self._worker.release()

    def _take(self) -> None:
        """Takes the current version; tries again where it cannot be read whole, since half of it may be there."""
        begun = False
        while not self._stopped.is_set():
            try:
                current = self._current()
                version, leaves = load_current(self._folder)
                begun = True
                self._worker.engine.update_params(leaves, version)
            except UserError as error:
                self._say(str(error))
                if not begun:  # the run has ended at this moment: the weights are those of before
                    return
                self._stopped.wait(INTERVAL)
                continue
            self._taken = current
            self._say(f"serving version {version} of the weights")
            return
