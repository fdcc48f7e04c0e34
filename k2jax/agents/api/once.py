"""What was found out about objects that stay the same from one request of an agent to the next."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

Value = TypeVar("Value")
Findings = Mapping[Hashable, Mapping[int, tuple[Any, Any]]]
"""By question, and by the identity of the object that it is about: the object and the answer."""


class Once:
    """Answers a question about an object once, which nobody changes.

    Objects are the same by identity alone: ``1 == True`` and ``1 == 1.0`` hold in Python, and a message that says the
    one is not a message that says the other.

    Args:
        before: findings of an earlier request.

    Attributes:
        found: those of this request, which keep its objects alive.
    """

    def __init__(self, before: Findings | None = None):
        self._before: Findings = before or {}
        self.found: dict[Hashable, Mapping[int, tuple[Any, Any]]] = {}

    def each(self, question: Hashable, objects: Sequence[Any], find: Callable[[int], Value]) -> list[Value]:
        """The answers for objects, found out before or now.

        Args:
            question: all that the answer for an object depends on beside the object and its place among the others.
            objects: what it is about.
            find: the answer for the object of a number. Where it raises, nothing is remembered.
        """
        before = self._before.get(question, {})
        known = [before.get(id(item)) for item in objects]
        pairs = [(objects[i], find(i)) if pair is None else pair for i, pair in enumerate(known)]
        self.found[question] = dict(zip(map(id, objects), pairs, strict=True))
        return [answer for _, answer in pairs]
