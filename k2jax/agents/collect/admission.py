"""How many episodes run at a time: as many as the engines' caches bear.

An engine whose cache is too small for its sequences preempts some, and computes what they had again. Additive increase
and multiplicative decrease (Chiu and Jain, 1989, as in TCP) finds the number of episodes just below that, and follows
it as they grow longer.
"""

from __future__ import annotations


class Admission:
    """The limit of concurrent episodes.

    Args:
        start: first limit.
        least: lower bound.
        most: upper bound.
        increase: added by every observation without pressure while the limit is reached.
        decrease: factor at every observation of pressure.
        pressure: share of the pages in use from which on there is pressure.

    Attributes:
        limit: how many episodes may run now.
    """

    def __init__(
        self,
        start: int,
        *,
        least: int = 1,
        most: int = 1 << 30,
        increase: int = 1,
        decrease: float = 0.7,
        pressure: float = 0.95,
    ):
        if not (1 <= least <= start <= most and increase >= 1 and 0 < decrease < 1 and 0 < pressure <= 1):
            raise ValueError("admission needs 1 <= least <= start <= most, increase >= 1, and shares below 1")
        self._limit = float(start)
        self._least, self._most, self._increase = least, most, increase
        self._decrease, self._pressure = decrease, pressure

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
        if preempted or pages >= self._pressure:
            if running <= self.limit:  # or the last decrease has not taken effect: episodes that run are not stopped
                self._limit = max(self._least, self._limit * self._decrease)
        elif running >= self.limit:
            self._limit = min(self._most, self._limit + self._increase)
