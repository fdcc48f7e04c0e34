"""How many episodes run at a time: as many as the engines' caches bear.

An engine whose cache is too small for its sequences preempts some, and computes what they had again. Additive increase
and multiplicative decrease (Chiu and Jain, 1989, as in TCP) finds the number of episodes just below that, and follows
it as they grow longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
import contextlib

from k2jax.agents.collect.engine_socket import EngineSocketClient
from k2jax.agents.collect.wire_messages import EngineLoad

DECREASE = 0.7
"""Factor of the limit at every observation of pressure."""
PRESSURE = 0.95
"""Share of the pages in use from which on there is pressure."""


class Admission:
    """The limit of concurrent episodes.

    Args:
        start: first limit.
        minimum: lower bound.
        maximum: upper bound.
        increase: added by every observation without pressure while the limit is reached.

    Attributes:
        limit: how many episodes may run now.
    """

    def __init__(self, start: int, *, minimum: int = 1, maximum: int = 1 << 30, increase: int = 1):
        if not (1 <= minimum <= start <= maximum and increase >= 1):
            raise ValueError("admission needs 1 <= least <= start <= most and increase >= 1")
        self._limit = float(start)
        self._minimum, self._maximum, self._increase = minimum, maximum, increase

    @property
    def limit(self) -> int:
        """See the class."""
        return int(self._limit)

    def observe(self, pages: float, running: int, preempted: bool = False) -> None:
        """What an engine reports, once in an interval.

        Args:
            pages: share of its cache's pages that running sequences hold.
            running: episodes that run.
            preempted: whether a sequence had to give its pages back since the last observation.
        """
        if preempted or pages >= PRESSURE:
            if running <= self.limit:  # or the last decrease has not taken effect: episodes that run are not stopped
                self._limit = max(self._minimum, self._limit * DECREASE)
        elif running >= self.limit:
            self._limit = min(self._maximum, self._limit + self._increase)


class EngineLoads:
    """Hears how full the caches of engines are, while ``async with`` lasts.

    Args:
        paths: sockets of the engines.
        observe: is told each time, see ``RolloutManager.observe``.
    """

    def __init__(self, paths: Sequence[str], observe: Callable[[float, bool], None]):
        self._observe = observe
        self._clients = [EngineSocketClient(path) for path in paths]
        self._preemptions = [0] * len(paths)

    async def __aenter__(self) -> EngineLoads:
        for number, client in enumerate(self._clients):
            client.on_load = lambda load, number=number: self._on_load(number, load)
        self._connecting = asyncio.gather(*(client.connect() for client in self._clients))
        return self

    async def __aexit__(self, *error: object) -> None:
        self._connecting.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):  # engines that never came: their workers say so
            await self._connecting
        for client in self._clients:
            await client.close()

    def _on_load(self, engine: int, load: EngineLoad) -> None:
        preempted = load.preemptions > self._preemptions[engine]
        self._preemptions[engine] = load.preemptions
        self._observe(load.pages, preempted)
