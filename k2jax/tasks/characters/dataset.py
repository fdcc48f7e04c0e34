"""Problems of a few characters that a model of a million parameters learns in minutes: sums, sorting, reversing.

A kind is a maker and a size: ``add3`` adds numbers of three digits, ``sub3`` subtracts them, ``sum6`` adds six digits,
``sort6`` sorts six letters, ``rev4`` reverses four. Each problem has a working that leads to its answer in small steps;
a full solution is ``working;answer``.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.agents.verifier import judges_every_answer, metadata_answer
from k2jax.tasks.generated import GeneratedTasks, SizedMaker, sized_makers, user
from k2jax.trajectory import Reward

LETTERS = "abcdefghij"
ANSWER_MARK = ";"
"""Stands between a working and its answer."""


class Problem(NamedTuple):
    """One problem.

    Attributes:
        prompt: ends with ``=``.
        working: steps to the answer, separated by commas.
        answer: the only right one.
    """

    prompt: str
    working: str
    answer: str


class CharacterTasks(GeneratedTasks):
    """Distinct character problems; the prompt is the one user message, and metadata hold answer, kind and working."""

    def __init__(
        self,
        kinds: tuple[str, ...] = ("add3", "sum6", "sort6"),
        count: int = 10_000,
        seed: int = 0,
        split: Split = "train",
    ):
        """A set of problems.

        Args:
            kinds: each with equal probability.
            count: number of tasks.
            seed: of their choice; the splits of all seeds are disjoint.
            split: ``train`` or ``test``.

        Raises:
            UserError: a kind is unknown, or ``count`` is not positive.
        """
        self._makers = sized_makers("characters", kinds, _MAKERS)
        super().__init__("characters", count, split, stream=f"{seed} {split} {' '.join(self._makers)}")

    def draw(self, number: int, rng: random.Random) -> Task:
        """A problem of any kind."""
        kind = rng.choice(list(self._makers))
        problem = self._makers[kind](rng)
        return Task(
            id=f"{kind}/{problem.prompt}",
            domain=kind,
            instruction=(user(problem.prompt),),
            verifier="final_answer",
            metadata={"answer": problem.answer, "kind": kind, "working": problem.working},
        )


@judges_every_answer(metadata_answer)
def final_answer(task: Task, answer: str) -> Reward:
    """Verifier: 1 if the text after the last ``;`` is the answer, else 0."""
    right = answer.rpartition(ANSWER_MARK)[2] == task.metadata["answer"]
    return Reward(float(right))


def _add(rng: random.Random, digits: int) -> Problem:
    a, b = _number(rng, digits), _number(rng, digits)
    steps, carry = [], 0
    for x, y in zip(reversed(str(a)), reversed(str(b)), strict=True):
        total = int(x) + int(y) + carry
        steps.append(f"{x}+{y}{'+1' if carry else ''}={total}")
        carry = total // 10
    return Problem(f"{a}+{b}=", ",".join(steps), str(a + b))


def _subtract(rng: random.Random, digits: int) -> Problem:
    b, a = sorted((_number(rng, digits), _number(rng, digits)))
    steps, borrow = [], 0
    for x, y in zip(reversed(str(a)), reversed(str(b)), strict=True):
        total = int(x) - int(y) - borrow
        steps.append(f"{x}-{y}{'-1' if borrow else ''}={total}")
        borrow = int(total < 0)
    return Problem(f"{a}-{b}=", ",".join(steps), str(a - b))


def _sum(rng: random.Random, count: int) -> Problem:
    """A sum of digits; the steps are the running totals."""
    digits = [rng.randint(1, 9) for _ in range(count)]
    steps, total = [], digits[0]
    for digit in digits[1:]:
        steps.append(f"{total}+{digit}={total + digit}")
        total += digit
    return Problem("+".join(map(str, digits)) + "=", ",".join(steps), str(total))


def _sort(rng: random.Random, count: int) -> Problem:
    """Selection sort; a step is the smallest letter and what is left without it."""
    letters = rng.choices(LETTERS, k=count)
    steps, rest = [], list(letters)
    for letter in sorted(letters)[:-1]:
        rest.remove(letter)
        steps.append(f"{letter}:{''.join(rest)}")
    return Problem(f"s{''.join(letters)}=", ",".join(steps), "".join(sorted(letters)))


def _reverse(rng: random.Random, count: int) -> Problem:
    letters = "".join(rng.choices(LETTERS, k=count))
    return Problem(f"r{letters}=", ",".join(letters[::-1]), letters[::-1])


def _number(rng: random.Random, digits: int) -> int:
    """A number of exactly so many digits."""
    return rng.randrange(10 ** (digits - 1), 10**digits)


_MAKERS = {
    "add": SizedMaker(_add),
    "sub": SizedMaker(_subtract),
    "sum": SizedMaker(_sum),
    "sort": SizedMaker(_sort),
    "rev": SizedMaker(_reverse),
}
