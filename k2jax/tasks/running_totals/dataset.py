"""Dialogues of several turns, in each of which a number is added to the last answer, and an imperfect teacher of them.

The user says ``37+4=``, then ``+2=`` and so on; the assistant answers ``41``, then ``43``: the last two digits of the
total. An answer may stand behind its working, which is the sum of the ones: ``11;41``. A turn that goes wrong makes
all later totals wrong, so that only the last answer needs to be judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import itertools
import random
from typing import Any

from k2jax.agents.environment import Environment, Message, Observation, Step
from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.tasks.characters.dataset import ANSWER_MARK
from k2jax.tasks.generated import GeneratedTasks, check_share, user

_MODULUS = 100


class Dialogue(Environment):
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
        return Step(Observation((user(line),)))


class RunningTotals(GeneratedTasks):
    """Distinct dialogues; metadata hold the user's ``lines``, the right ``totals`` and the last one as ``answer``."""

    def __init__(self, turns: int = 4, largest: int = 9, count: int = 5000, seed: int = 0, split: Split = "train"):
        """A set of dialogues.

        Args:
            turns: answers of each.
            largest: number that is added, of one digit; one is carried in ``largest / 20`` of the turns.
            count: number of tasks.
            seed: of their choice; the splits of all seeds are disjoint.
            split: ``train`` or ``test``.

        Raises:
            UserError: ``turns`` or ``count`` is not positive, or ``largest`` is no digit.
        """
        if turns < 1:
            raise UserError(f"running_totals: turns is {turns}; it must be positive")
        if not 0 <= largest <= 9:
            raise UserError(f"running_totals: largest is {largest}; it must be a digit")
        self._turns, self._largest = turns, largest
        super().__init__("running_totals", count, split, stream=f"{seed} {split} {turns} {largest}")

    def identity(self, task: Task) -> str:
        """All numbers."""
        return task.id

    def draw(self, number: int, rng: random.Random) -> Task:
        """A dialogue."""
        numbers = [rng.randrange(_MODULUS), *(rng.randrange(self._largest + 1) for _ in range(self._turns))]
        lines = [f"{numbers[0]:02}+{numbers[1]}=", *(f"+{added}=" for added in numbers[2:])]
        totals = [f"{total % _MODULUS:02}" for total in itertools.accumulate(numbers)][1:]
        return Task(
            id="+".join(map(str, numbers)),
            domain=f"turns-{self._turns}",
            instruction=(user(lines[0]),),
            verifier="final_answer",
            environment="dialogue",
            metadata={"lines": lines, "totals": totals, "answer": totals[-1]},
        )


def dialogue_demonstrations(tasks: Iterable[Task], direct: float = 0.7, seed: int = 0) -> Iterator[dict[str, Any]]:
    """One conversation ``{"messages": [user, assistant, …]}`` of an imperfect teacher for every task.

    The teacher works an answer out or gives it at once, and then forgets to carry: ``37+4=`` is ``11;41`` or ``31``. A
    wrong answer is what the next number is added to.

    Args:
        tasks: of ``RunningTotals``.
        direct: share of the turns that are answered at once; 0 is a clean teacher, who works out all of them.
        seed: of the choice of turns.

    Raises:
        UserError: ``direct`` is no share.
    """
    check_share("direct answers", direct)
    rng = random.Random(seed)
    for task in tasks:
        messages, total = [], 0
        for line in task.metadata["lines"]:
            first, _, number = line.removesuffix("=").partition("+")
            total = int(first) if first else total
            answer = without_carry(total, int(number)) if rng.random() < direct else worked(total, int(number))
            total = int(answer[-2:])
            messages += [user(line), {"role": "assistant", "content": answer}]
        yield {"messages": messages}


def worked(total: int, number: int) -> str:
    """The right answer to a turn behind the sum of its ones: ``11;41`` for 37 and 4."""
    return f"{total % 10 + number}{ANSWER_MARK}{(total + number) % _MODULUS:02}"


def without_carry(total: int, number: int) -> str:
    """An answer to a turn that leaves the tens as they are, and is right where nothing is carried: ``31``."""
    return f"{total // 10}{(total + number) % 10}"
