"""What was found out about objects that stay the same from one request of an agent to the next."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

Value = TypeVar("Value")
Findings = Mapping[Hashable, tuple[Any, Any]]
"""By what was found out and the identities of the objects that it is about; each with the objects themselves."""


class Once:
    """Finds things out once for the same objects, which nobody changes.

    Objects count as the same by identity alone: ``1 == True`` and ``1 == 1.0`` hold in Python, and a message that says
    the one is not a message that says the other.

    Args:
        before: findings of an earlier request.

    Attributes:
        found: those of this request, whose objects it keeps alive.
    """

    def __init__(self, before: Findings | None = None):
        self._before: Findings = before or {}
        self.found: dict[Hashable, tuple[Any, Any]] = {}

    def of(self, what: Hashable, subjects: tuple[Any, ...], find: Callable[[], Value]) -> Value:
        """What ``find()`` returns, or has returned for the same question and the same objects.

        Args:
            what: the question; with the objects it decides the answer.
            subjects: the objects, of which the answer is a function.
            find: finds it out; where it raises, nothing is remembered.
        """
        key = (what, *map(id, subjects))
        known = self._before.get(key)
        if known is None:
            known = (subjects, find())
        self.found[key] = known
        return known[1]
