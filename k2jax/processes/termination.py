"""The end of a run: one exit code for all processes, and Ctrl-C as SIGTERM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import os
import signal
import threading
import time
import traceback
from typing import Any

from k2jax.errors import UserError
from k2jax.processes.membership import current_group
from k2jax.processes.rendezvous import ProcessLostError

_LONGEST_LINE = 300  # characters of an unexpected exception that the other processes repeat


@contextlib.contextmanager
def interrupt_terminates() -> Iterator[None]:
    """Turns the first Ctrl-C into SIGTERM, so that every process learns of it; a second Ctrl-C is not caught."""

    def forward(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, previous)
        os.kill(os.getpid(), signal.SIGTERM)

    previous = signal.signal(signal.SIGINT, forward)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def end_on_signals() -> None:
    """Ends all processes when one of them receives SIGTERM or Ctrl-C; of one process alone the signal does so itself.

    It is for those that have nothing to save: jax keeps SIGTERM for ``stop_requested``.
    """
    group = current_group()
    if group is None:
        return

    def end(number: int, frame: Any) -> None:  # on another thread: this one may be ending the process
        values = {"line": f"{signal.Signals(number).name} ends it", "code": 128 + number, "failed": group.index}
        threading.Thread(target=group.stop, kwargs=values, name="signal", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def run_and_exit(body: Callable[[], int]) -> int:
    """Runs ``body`` in every process, and ends all processes with one exit code.

    In a run of several processes it does not return: each process ends here, either after all have finished ``body``,
    or as soon as one of them has failed. If another process dies, a collective of this one fails as well. So before a
    process reports its own exception, it waits for as long as the news of a lost process can take.

    Args:
        body: returns the exit code.

    Returns:
        The exit code, in a run of one process.
    """
    group = current_group()
    if group is None:
        return body()
    try:
        group.leave(body())
    except UserError as error:
        group.stop(str(error), 2, failed=group.index)
    except ProcessLostError as error:
        group.stop(str(error), 1)
    except BaseException as error:
        if isinstance(error, Exception):
            time.sleep(group.news_seconds)
        traceback.print_exc()
        line = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_LINE]
        group.stop(line, 1, failed=group.index)
