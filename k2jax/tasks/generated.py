"""Datasets whose tasks are drawn at random: distinct ones of a split, of kinds that are words or words with a size."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
import json
import random
import re
from typing import Any, Generic, NamedTuple, TypeVar

from k2jax.agents.environment import Message
from k2jax.agents.split import Split, split_of
from k2jax.agents.task import Task
from k2jax.errors import UserError, abbreviate, nearest

_TRIES = 1000
"""Draws for one more distinct task: a tenth of them at least are of the split, and mostly new."""
P = TypeVar("P")


class GeneratedTasks(abc.ABC):
    """Distinct tasks of one split in an order that depends on the options alone; the splits of all seeds are disjoint.

    Args:
        dataset: its name, for messages.
        count: number of tasks.
        split: ``train`` or ``test``.
        stream: seed of the random numbers.

    Raises:
        UserError: ``count`` is not positive.
    """

    def __init__(self, dataset: str, count: int, split: Split, stream: str):
        if count < 1:
            raise UserError(f"{dataset}: count is {count}; it must be positive")
        self._dataset, self._count, self._split, self._stream = dataset, count, split, stream

    @abc.abstractmethod
    def draw(self, number: int, rng: random.Random) -> Task:
        """Any task; ``number`` is how many come before it."""

    def identity(self, task: Task) -> str:
        """The text that no two tasks share, and that decides the split of a task: its prompt."""
        return task.instruction[-1]["content"]

    def load(self) -> Iterator[Task]:
        """The tasks.

        Raises:
            UserError: there are not as many distinct ones.
        """
        rng = random.Random(self._stream)
        seen: set[str] = set()
        for number in range(self._count):
            for _ in range(_TRIES):
                task = self.draw(number, rng)
                text = self.identity(task)
                if text not in seen and split_of(text) == self._split:
                    break
            else:
                raise UserError(
                    f"{self._dataset}: hardly more than {number} distinct problems of these options are in the split "
                    f"{self._split!r}; lower count, or raise sizes or the number of kinds"
                )
            seen.add(text)
            yield task


def check_kinds(dataset: str, kinds: Sequence[str], known: Sequence[str]) -> None:
    """Raises UserError where no kind is named, or one that is not known."""
    if not kinds:
        raise UserError(f"{dataset}: kinds is empty; there are {', '.join(known)}")
    for kind in kinds:
        if kind not in known:
            raise UserError(f"{dataset}: there is no kind {abbreviate(kind)}{nearest(kind, known)}")


class SizedMaker(NamedTuple, Generic[P]):
    """What makes the problems of a kind.

    Attributes:
        make: a problem of a size, with random numbers.
        smallest: size.
        largest: size.
    """

    make: Callable[[random.Random, int], P]
    smallest: int = 1
    largest: int = 99


def sized_makers(
    dataset: str, kinds: tuple[str, ...], makers: Mapping[str, SizedMaker[P]]
) -> dict[str, Callable[[random.Random], P]]:
    """What draws a problem of each kind.

    Args:
        dataset: its name, for messages.
        kinds: each the name of a maker and a size, such as ``add3``.
        makers: by name.

    Raises:
        UserError: there is no kind, or one without such a maker, without a size, or of a size out of range.
    """
    if not kinds:
        raise UserError(f"{dataset}: kinds is empty; name kinds such as {next(iter(makers))}3")
    return {kind: _drawer(dataset, kind, makers) for kind in kinds}


def _drawer(dataset: str, kind: str, makers: Mapping[str, SizedMaker[P]]) -> Callable[[random.Random], P]:
    match = re.fullmatch(r"([a-z]+)(0|[1-9][0-9]{0,8})", kind)
    if match is None or match[1] not in makers:
        name = match[1] if match else kind
        raise UserError(f"{dataset}: {abbreviate(kind)} is no kind followed by a size{nearest(name, list(makers))}")
    maker, size = makers[match[1]], int(match[2])
    if not maker.smallest <= size <= maker.largest:
        raise UserError(f"{dataset}: the size of {match[1]} is {size}; it must be {maker.smallest} to {maker.largest}")
    return lambda rng: maker.make(rng, size)


def user(text: str) -> Message:
    """A message of the user."""
    return {"role": "user", "content": text}


def demonstrated_call(name: str, arguments: Any, output: str) -> Iterator[Mapping[str, Any]]:
    """A call in a demonstration, and what the tool answers."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    yield {"role": "assistant", "content": "", "tool_calls": [{"id": "0", "type": "function", "function": function}]}
    yield {"role": "tool", "tool_call_id": "0", "name": name, "content": output}


def check_share(what: str, share: float) -> None:
    """Raises UserError where a teacher's share of something, named in the plural, is none."""
    if not 0 <= share <= 1:
        raise UserError(f"the share of {what} is {share}; it must be between 0 and 1")
