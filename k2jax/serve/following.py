"""A server whose weights are those of a run that trains now: every version that the run publishes, soon after it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
import threading
from typing import Any, Protocol

from k2jax.convert.loading import Opened
from k2jax.errors import UserError
from k2jax.inference.weights import Name
from k2jax.inference.worker import Worker
from k2jax.rl.sync.stored_weights import Target, current_of, load_current, load_together

INTERVAL = 0.5
"""Time between two looks at the store, and between two tries to read a damaged version [s]."""


class WeightSource(Protocol):
    """Where the versions of a run's weights come from.

    Attributes:
        loaded: what ``current`` said of the version that was loaded last; None before the first.
    """

    loaded: Hashable | None

    def current(self) -> Hashable | None:
        """What tells the current version from others; None where there is none.

        A run that is resumed publishes the same numbers again, so the number alone does not.
        """

    def load(self) -> tuple[int, Iterator[tuple[Name, Any]]]:
        """Number and weights of the current version, for ``Engine.update_params``.

        Raises:
            UserError: there is none, or, while arrays are read, one is damaged or the rest does not come.
        """

    def close(self) -> None:
        """Leaves the source; another thread that reads arrays gets no more of them."""


class StoredWeights:
    """The versions that a run keeps in the memory of this machine.

    Args:
        folder: of the store.
        target: of the weights of an engine of several processes, each of which has such a source and loads when the
            others do; None where the engine is one process.

    Attributes:
        loaded: as of ``WeightSource``.
    """

    def __init__(self, folder: Path, target: Target | None = None):
        self._folder, self._target = folder, target
        self.loaded: Hashable | None = None

    def current(self) -> Hashable | None:
        """See ``WeightSource``."""
        current = current_of(self._folder)
        return None if current is None else current["folder"]

    def load(self) -> tuple[int, Iterator[tuple[Name, Any]]]:
        """See ``WeightSource``."""
        current = current_of(self._folder)  # before the weights: a version that replaces it meanwhile is taken next
        if self._target is None:
            version, leaves = load_current(self._folder)
        else:
            version, leaves = load_together(self._folder, self._target)
        is_current = current is not None and current["version"] == version  # of several processes one may be late
        self.loaded = current["folder"] if is_current else None
        return version, leaves

    def close(self) -> None:
        """See ``WeightSource``; nobody waits for what lies in memory."""


class CheckpointWeights:
    """The weights of a checkpoint, which never change.

    Args:
        opened: the checkpoint.
        version: number that its tokens record.

    Attributes:
        loaded: as of ``WeightSource``.
    """

    def __init__(self, opened: Opened, version: int):
        self._opened, self._version = opened, version
        self.loaded: Hashable | None = None

    def current(self) -> Hashable | None:
        """See ``WeightSource``."""
        return self._version

    def load(self) -> tuple[int, Iterator[tuple[Name, Any]]]:
        """See ``WeightSource``."""
        self.loaded = self._version
        return self._version, self._opened.host_leaves()

    def close(self) -> None:
        """See ``WeightSource``."""


class WeightFollower:
    """Takes each new version of a source between two steps of an engine, until ``stop``.

    Requests that run go on under the new weights, after their cache was computed anew. When the run ends, the last
    version is served on. A version that is damaged stops generation until a whole one is there.

    Args:
        worker: of the engine, whose weights are those that the source has loaded last.
        source: of the weights.
        say: is told of every version that is taken, and of every failure.
        take: has the engine take the source's current version, and returns its number; by default it loads it.
        interval: time between two looks at the source; 0 is ``INTERVAL`` [s].
    """

    def __init__(
        self,
        worker: Worker,
        source: WeightSource,
        say: Callable[[str], None],
        take: Callable[[], int] | None = None,
        interval: float = 0.0,
    ):
        self._worker, self._source, self._say = worker, source, say
        self._take, self._interval = take or self._load, interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="weights", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Follows no longer and leaves the source; returns when the engine is the worker's alone."""
        self._stopped.set()
        self._source.close()
        self._thread.join()

    def _follow(self) -> None:
        taken, failed = self._source.loaded, False
        while not self._stopped.wait(self._interval or INTERVAL):
            try:
                current = self._source.current()
                failed = False
                if current is None or current == taken:
                    continue
                self._worker.hold()
            except (OSError, ValueError, UserError) as error:
                if not failed:  # where a run has ended, that is said once
                    self._say(f"the published weights cannot be read: {error}")
                failed = True
                continue
            except RuntimeError:  # the worker has ended, and with it the server
                return
            try:
                taken = self._taken_instead_of(taken)
            finally:
                self._worker.release()

    def _load(self) -> int:
        version, leaves = self._source.load()
        self._worker.engine.update_params(leaves, version)
        return version

    def _taken_instead_of(self, taken: Hashable | None) -> Hashable | None:
        """Takes the current version and returns what the source says of the one that the engine has then.

        Tries again where it cannot be read whole, since half of it may be there.
        """
        while not self._stopped.is_set():
            try:
                version = self._take()
            except UserError as error:
                self._say(str(error))
                if self._worker.engine.weights.complete:  # the run has ended at this moment
                    return taken
                self._stopped.wait(INTERVAL)
                continue
            self._say(f"serving version {version} of the weights")
            return self._source.loaded
        return taken
