"""Who does tasks: this process, or as many of this machine as it has cores; ``ray_pool`` has those of other machines.

Results come in the order of their items, whoever was first; a task that was lost with its process is done again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
import contextlib
import itertools
import os
import pickle
import threading
from typing import Protocol, TypeVar

from k2jax.data.preparation.task_process import AHEAD, MOST_TRIES, TaskProcess, result
from k2jax.errors import UserError

Item, Result = TypeVar("Item"), TypeVar("Result")


class TaskPool(Protocol):
    """Does tasks."""

    def run(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """The results of a function in the order of its arguments; an exception is raised in its place.

        Who wants no more of them closes the generator, which ends what is under way.

        Args:
            function: can be sent to other processes, as can arguments and results.
            items: arguments.

        Raises:
            UserError: processes died of a task, again and again.
        """
        ...

    def close(self) -> None:
        """Ends its processes; nothing is asked of it afterwards."""
        ...


class InProcess:
    """Does tasks in this process, each when its result is asked for."""

    def run(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """See ``TaskPool``."""
        yield from map(function, items)

    def close(self) -> None:
        """See ``TaskPool``."""


class ProcessPool:
    """Does tasks in processes of this machine, which start with the second task: one is done in this process.

    Args:
        workers: number of processes.
    """

    def __init__(self, workers: int):
        self._workers, self._threads = workers, ThreadPoolExecutor(workers, "prepare")
        self._mine = threading.local()
        self._processes: set[TaskProcess] = set()

    def run(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """See ``TaskPool``."""
        items = iter(items)
        first = list(itertools.islice(items, 2))
        if len(first) < 2:
            yield from map(function, first)
        else:
            yield from self._run(pickle.dumps(function), itertools.chain(first, items))

    def close(self) -> None:
        """See ``TaskPool``."""
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.close()

    def _run(self, function: bytes, items: Iterator[Item]) -> Iterator[Result]:
        waiting, stopped = deque(), threading.Event()
        try:
            for item in itertools.islice(items, self._workers * AHEAD):
                waiting.append(self._threads.submit(self._call, function, item, stopped))
            while waiting:
                yield result(waiting.popleft().result())
                for item in itertools.islice(items, 1):
                    waiting.append(self._threads.submit(self._call, function, item, stopped))
        finally:
            stopped.set()
            if any([not future.cancel() for future in waiting]):  # nobody wants the rest, which may take long
                self._kill()
                wait(future for future in waiting if not future.cancelled())

    def _call(self, function: bytes, item: Item, stopped: threading.Event) -> bytes:
        """Does a task in the process of this thread."""
        for _ in range(MOST_TRIES):
            process = self._process()
            try:
                return process.call(function, item)
            except (EOFError, OSError):
                self._mine.process = None
                self._processes.discard(process)
                process.close()
                if stopped.is_set():
                    raise
        raise UserError(
            f"{MOST_TRIES} processes died of one task that prepares data, of memory perhaps: use fewer of them, with "
            "python -m k2jax.data build --workers=N"
        )

    def _process(self) -> TaskProcess:
        if getattr(self._mine, "process", None) is None:
            self._mine.process = TaskProcess()
            self._processes.add(self._mine.process)
        return self._mine.process

    def _kill(self) -> None:
        for process in list(self._processes):
            process.kill()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def open_pool(workers: int = 0, cluster: str = "") -> Iterator[TaskPool]:
    """A pool for the block.

    Args:
        workers: processes of this machine; 1 is this process, 0 one for every core.
        cluster: a Ray cluster in their place; see ``RayPool``.

    Raises:
        UserError: there is no such cluster.
    """
    if cluster:
        from k2jax.data.preparation.ray_pool import RayPool  # Ray is an extra, and takes seconds to import

        pool = RayPool(cluster)
    else:
        pool = ProcessPool(workers or cores()) if (workers or cores()) > 1 else InProcess()
    try:
        yield pool
    finally:
        pool.close()
