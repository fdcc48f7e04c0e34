"""Processes beside the training's own that prepare data, and what ends them when it has died."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
import itertools
import multiprocessing
import os
import threading
import time
from typing import TypeVar

from k2jax.errors import UserError

_WATCHED = 1.0  # how often a worker looks whether its parent lives [s]
_TOGETHER = 8  # items that a worker gets at a time: some hold images
_AHEAD = 4  # portions that wait for each worker: of a long list no more are in memory

Item, Result = TypeVar("Item"), TypeVar("Result")


def end_with(parent: int) -> None:
    """Ends this process when its parent has died, however it did; a killed process takes none of its own with it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCHED)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Results of a function in the order of its arguments.

    Args:
        function: can be sent to another process, as can arguments and results.
        items: arguments, which are taken a few portions ahead.
        workers: processes that compute it; 0 is this one.

    Raises:
        UserError: a process died.
    """
    if not workers:
        yield from map(function, items)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy JAX's threads in the middle of what they do
    items = iter(items)
    portions = iter(lambda: list(itertools.islice(items, _TOGETHER)), [])
    with ProcessPoolExecutor(workers, context, _begin, (os.getpid(), function)) as pool:
        waiting, processes = deque(), []
        try:
            waiting.extend(pool.submit(_of_all, portion) for portion in itertools.islice(portions, workers * _AHEAD))
            processes = list((pool._processes or {}).values())  # to end them: no public way before Python 3.14
            while waiting:
                results, error = waiting.popleft().result()
                yield from results
                if error:
                    raise error
                waiting.extend(pool.submit(_of_all, portion) for portion in itertools.islice(portions, 1))
        except BrokenProcessPool:
            raise UserError(
                "a process that prepares data died, of memory perhaps; set data.workers=0, or protect your program by "
                'if __name__ == "__main__"'
            ) from None
        except BaseException:  # GeneratorExit too: nobody wants the rest, which may take hours
            for process in processes:
                process.kill()
            raise


_function: Callable = tuple  # of a worker


def _begin(parent: int, function: Callable) -> None:
    global _function
    _function = function
    end_with(parent)


def _of_all(portion: list) -> tuple[list, Exception | None]:
    """Results up to the first error, and the error."""
    results = []
    for item in portion:
        try:
            results.append(_function(item))
        except Exception as error:
            return results, error
    return results, None
