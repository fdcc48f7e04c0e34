"""A clock that only counts, for simulations."""

from __future__ import annotations

from collections.abc import Callable
import heapq
import itertools


class EventClock:
    """Calls functions in the order of their times, and those of one time in the order in which they came.

    Attributes:
        now: time since the beginning [s].
    """

    def __init__(self):
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Calls a function in so many seconds."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), function))

    def run(self) -> None:
        """Goes on until nothing is left to be called."""
        while self._events:
            self.step()

    def step(self) -> None:
        """Calls the next function.

        Raises:
            IndexError: there is none.
        """
        self.now, _, function = heapq.heappop(self._events)
        function()
