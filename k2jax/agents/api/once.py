"""What was found out about objects that stay the same from one request of an agent to the next."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import is_
from typing import Any, TypeVar

Value = TypeVar("Value")
Findings = Mapping[Hashable, tuple[Sequence[Any], list[Any]]]
"""By question: the objects that it was about, in order, and the answers."""


class Once:
    """Answers questions about objects that nobody changes, each once.

    Objects are the same by identity alone: ``1 == True`` and ``1 == 1.0`` hold in Python, and a message that says the
    one is not a message that says the other.

    Args:
        before: findings of an earlier request.

    Attributes:
        found: those of this request, which keep its objects alive.
    """

    def __init__(self, before: Findings | None = None):
        self._before: Findings = before or {}
        self.found: dict[Hashable, tuple[Sequence[Any], list[Any]]] = {}

    def each(self, question: Hashable, objects: Sequence[Any], find: Callable[[int], Value]) -> list[Value]:
        """The answers for objects, found out before or now.

        Args:
            question: all that the answer for an object depends on beside the object and its place among the others.
            objects: what it is about, in the order in which they will mostly come again.
            find: the answer for the object of a number. Where it raises, nothing is remembered.
        """
        known, answers = self._before.get(question, ((), []))
        same = list(map(is_, known, objects))
        begin = same.index(False) if False in same else len(same)
        others = dict(zip(map(id, known[begin:]), answers[begin:], strict=True))
        answers = answers[:begin]
        for index in range(begin, len(objects)):
            key = id(objects[index])
            answers.append(others[key] if key in others else find(index))
        self.found[question] = (tuple(objects), answers)
        return answers
