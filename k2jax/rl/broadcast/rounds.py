"""Who takes a version from whom: those who want the same of it together form a chain, latecomers ask a neighbour.

A chain sends every byte once out of each of its hosts. The source waits a moment for the engines that have had the
version before, so that they begin together: what was forwarded is kept by nobody. Who comes later, or has lost the one
before it, is given to an engine that has the whole version, or where there is none to the source.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from k2jax.rl.broadcast.peers import Address

GATHER_SECONDS = 1.0
"""Time for which the first of a chain waits for the others."""
Group = tuple[str, str]
"""Identity of a version and what is wanted of it."""


class Parent(NamedTuple):
    """Whom a receiver takes a version from.

    Attributes:
        address: None is the source itself.
        live: whether it receives the version itself at the same time.
        followed: whether the receiver has a successor, for which it waits.
    """

    address: Address | None
    live: bool = False
    followed: bool = False


class _Round:
    """A chain that is being gathered."""

    def __init__(self, until: float):
        self.until, self.members, self.closed = until, [], False


class Rounds:
    """The chains of one source."""

    def __init__(self):
        self._changed = threading.Condition()
        self._gathering: dict[Group, _Round] = {}
        self._holders: dict[Address, Group] = {}
        self._given = 0

    def join(self, group: Group, address: Address) -> Parent:
        """The place of a receiver in the next chain; returns when it begins."""
        with self._changed:
            gathered = self._gathering.get(group)
            if gathered is None:
                gathered = self._gathering[group] = _Round(time.monotonic() + GATHER_SECONDS)
            gathered.members = [member for member in gathered.members if member != address] + [address]
            self._changed.notify_all()
            while not gathered.closed:
                left = gathered.until - time.monotonic()
                if left <= 0 or self._is_full(group, gathered):
                    gathered.closed = True
                    del self._gathering[group]
                    self._changed.notify_all()
                else:
                    self._changed.wait(left)
            place = gathered.members.index(address)
            followed = place + 1 < len(gathered.members)
            if place:
                return Parent(gathered.members[place - 1], True, followed)
            return Parent(self._holder(group, {address}), False, followed)

    def _is_full(self, group: Group, gathered: _Round) -> bool:
        """Whether all are there who have had the version before; where none had, those who have this one were first."""
        same = [(address, held) for address, held in self._holders.items() if held[1] == group[1]]
        return bool(same) and {address for address, held in same if held != group} <= set(gathered.members)

    def rejoin(self, group: Group, failed: set[Address]) -> Parent:
        """Who has the whole version, for a receiver that has lost its place; the source where nobody has."""
        with self._changed:
            return Parent(self._holder(group, failed))

    def _holder(self, group: Group, avoided: set[Address]) -> Address | None:
        holders = [address for address, held in self._holders.items() if held == group and address not in avoided]
        self._given += 1
        return holders[self._given % len(holders)] if holders else None

    def holds(self, group: Group, address: Address) -> None:
        """A receiver has the whole version and gives it to others."""
        with self._changed:
            self._holders[address] = group

    def gone(self, address: Address) -> None:
        """A receiver is no longer there."""
        with self._changed:
            self._holders.pop(address, None)
            self._changed.notify_all()
