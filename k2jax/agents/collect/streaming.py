"""Groups of samples for a trainer, as soon as they are complete or in the order of their keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from k2jax.agents.collect.journal import Emission


class CompleteGroup(NamedTuple):
    """The ends of all samples of a prompt.

    Attributes:
        key: (step, prompt).
        emissions: in the order of samples.
    """

    key: tuple[int, int]
    emissions: tuple[Emission, ...]


class GroupStream:
    """Puts the ends of tasks together to groups.

    In the order of completion a trainer waits for nobody that it does not need (dynamic streaming, KAT-Coder-V2,
    section 3.2). In the order of keys the groups of every run are the same: deterministic mode.

    Args:
        keys: (step, prompt, sample) of all tasks.
        ordered: whether a group waits for all groups before it.
    """

    def __init__(self, keys: Iterable[tuple[int, int, int]], ordered: bool):
        self._missing: dict[tuple[int, int], int] = {}
        for step, prompt, _ in sorted(keys):
            self._missing[step, prompt] = self._missing.get((step, prompt), 0) + 1
        self._ordered = ordered
        self._arrived: dict[tuple[int, int], list[Emission]] = {key: [] for key in self._missing}

    def add(self, emission: Emission) -> Iterator[CompleteGroup]:
        """An end has come; yields the groups that may be handed on now."""
        key = emission.key[:2]
        self._arrived[key].append(emission)
        self._missing[key] -= 1
        if not self._ordered:
            if not self._missing[key]:
                yield self._taken(key)
            return
        while self._missing:
            first = next(iter(self._missing))
            if self._missing[first]:
                return
            yield self._taken(first)

    def _taken(self, key: tuple[int, int]) -> CompleteGroup:
        del self._missing[key]
        return CompleteGroup(key, tuple(sorted(self._arrived.pop(key), key=lambda emission: emission.key)))
