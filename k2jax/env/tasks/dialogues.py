"""Dialogues of several turns, in each of which a number is added to the last answer.

The user says ``37+58=``, then ``+46=`` and so on; the assistant answers ``95``, then ``141``. The last answer is right
only where no earlier turn went wrong, or was put right on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import itertools
import random
from typing import Any

from k2jax.env.environment import Message, Observation, Step
from k2jax.env.split import Split
from k2jax.env.task import Task
from k2jax.env.tasks.drawing import distinct
from k2jax.errors import UserError


class Dialogue:
    """Says one line of the task's metadata ``lines`` after every answer, whatever it is, and ends after the last."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """The first line, which is the instruction."""
        self._lines = iter(task.metadata["lines"][1:])
        return Observation(task.instruction)

    async def step(self, action: Message) -> Step:
        """The next line."""
        line = next(self._lines, None)
        if line is None:
            return Step(Observation(), terminated=True)
        return Step(Observation((_user(line),)))

    async def close(self) -> None:
        """Nothing."""


class RunningTotals:
    """Distinct dialogues; metadata hold the user's ``lines``, the right ``totals`` and the last one as ``answer``."""

    def __init__(self, turns: int = 4, digits: int = 2, count: int = 5000, seed: int = 0, split: Split = "train"):
        """A set of dialogues.

        Args:
            turns: answers of each.
            digits: of the numbers that are added.
            count: number of tasks.
            seed: of their choice; the splits of all seeds are disjoint.
            split: ``train`` or ``test``.

        Raises:
            UserError: a number is not positive.
        """
        if min(turns, digits, count) < 1:
            raise UserError("running_totals: turns, digits and count must be positive")
        self._turns, self._digits, self._count = turns, digits, count
        self._seed, self._split = seed, split

    def load(self) -> Iterator[Task]:
        """The tasks in a random order that depends on the options alone.

        Raises:
            UserError: there are not as many distinct dialogues.
        """
        rng = random.Random(f"{self._seed} {self._split} {self._turns} {self._digits}")
        low = 10 ** (self._digits - 1)

        def draw() -> tuple[str, list[int]]:
            numbers = [rng.randrange(low, 10 * low) for _ in range(1 + self._turns)]
            return "+".join(map(str, numbers)), numbers

        words = {"things": f"dialogues of {self._turns} turns and {self._digits} digits", "remedy": "digits"}
        for name, numbers in distinct(draw, self._count, self._split, dataset="running_totals", **words):
            lines = [f"{numbers[0]}+{numbers[1]}=", *(f"+{number}=" for number in numbers[2:])]
            totals = [str(total) for total in itertools.accumulate(numbers)][1:]
            yield Task(
                id=name,
                domain=f"turns-{self._turns}",
                instruction=(_user(lines[0]),),
                verifier="final_answer",
                environment="dialogue",
                metadata={"lines": lines, "totals": totals, "answer": totals[-1]},
            )


def dialogue_demonstrations(tasks: Iterable[Task]) -> Iterator[dict[str, Any]]:
    """One conversation ``{"messages": [user, assistant, …]}`` of right answers for every task of ``RunningTotals``."""
    for task in tasks:
        messages = []
        for line, total in zip(task.metadata["lines"], task.metadata["totals"], strict=True):
            messages += [_user(line), {"role": "assistant", "content": total}]
        yield {"messages": messages}


def _user(line: str) -> Message:
    return {"role": "user", "content": line}
