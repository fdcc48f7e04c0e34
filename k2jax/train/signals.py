"""SIGTERM and Ctrl-C as requests to save and stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import signal
from typing import Any

STOP_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
"""Exit code of a run that was stopped by each signal."""


class StopAskedError(Exception):
    """A run was asked to stop and waits for what may never come; a Run that is left with it saves and ends well."""

    def __init__(self):
        super().__init__("the run was asked to stop")


@contextlib.contextmanager
def stop_on_signal(ask: Callable[[int], None]) -> Iterator[None]:
    """Calls ``ask`` with the signal's number on SIGTERM and Ctrl-C; a second one is not caught.

    Outside the main thread, as in some notebooks, signals stay as they are.
    """

    def handle(number: int, frame: Any) -> None:
        ask(number)
        signal.signal(number, old[number])

    try:
        old = {number: signal.signal(number, handle) for number in STOP_CODES}
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
