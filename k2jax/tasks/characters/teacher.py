"""An imperfect teacher of character problems: demonstrations for SFT, and unlabelled text for pretraining.

The teacher writes most answers at once, which a small model learns badly, and works out the rest. A model trained on
its demonstrations therefore solves only a part of the problems, and reinforcement learning has something to find.

Another teacher works everything out, and then often checks each sum of a working by subtracting, once or twice. Its
demonstrations are right whatever their length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import random
import re
from typing import Any, Literal

from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.tasks.characters.dataset import ANSWER_MARK
from k2jax.tasks.generated import check_share

Style = Literal["direct", "worked"]
CHECK_MARK = "?"
"""Stands before a check of a working."""
_SUM = re.compile(r"\d+\+\d+(?:\+1)?=\d+")
_MOST_CHECKS = 2


def demonstrations(tasks: Iterable[Task], direct: float = 0.6, seed: int = 0) -> Iterator[dict[str, Any]]:
    """One conversation for every task: ``{"messages": [user, assistant]}``.

    Args:
        tasks: character tasks.
        direct: share of answers without working; 0 is a clean teacher, who works out all of them.
        seed: of the choice of styles.

    Raises:
        UserError: ``direct`` is no share.
    """
    for task, answer in solutions(tasks, direct, random.Random(seed)):
        yield {"messages": [*task.instruction, {"role": "assistant", "content": answer}]}


def pretraining_texts(tasks: Iterable[Task]) -> Iterator[str]:
    """One document for every task: the problem, its working and its answer."""
    for task in tasks:
        yield task.instruction[0]["content"] + solution(task, "worked")


def solutions(tasks: Iterable[Task], direct: float, rng: random.Random) -> Iterator[tuple[Task, str]]:
    """Every task with a right answer.

    Args:
        tasks: character tasks.
        direct: share of answers without working.
        rng: chooses the style of an answer, with one number for each.

    Raises:
        UserError: ``direct`` is no share.
    """
    check_share("direct answers", direct)
    for task in tasks:
        yield task, solution(task, "direct" if rng.random() < direct else "worked")


def solution(task: Task, style: Style) -> str:
    """A right answer in a style: ``579`` or ``3+6=9,2+5=7,1+4=5;579``."""
    answer = task.metadata["answer"]
    return answer if style == "direct" else f"{task.metadata['working']}{ANSWER_MARK}{answer}"


def style_of(answer: str) -> Style:
    """The style of an answer, right or wrong: ``worked`` where something stands before the mark of the answer."""
    return "worked" if answer.rpartition(ANSWER_MARK)[0] else "direct"


def checked_demonstrations(
    tasks: Iterable[Task], shares: Sequence[float] = (0.2, 0.4, 0.4), seed: int = 0
) -> Iterator[dict[str, Any]]:
    """One conversation for every task, as ``demonstrations``: each is worked out, and some are checked.

    Args:
        tasks: character tasks of kinds whose workings are sums.
        shares: of solutions with no check, one and two.
        seed: of the choice among them.

    Raises:
        UserError: the shares do not sum to 1, or a working holds no sum to check.
    """
    if len(shares) != _MOST_CHECKS + 1 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise UserError(f"the shares of solutions with 0, 1 and 2 checks are {tuple(shares)}; three that sum to 1 do")
    rng = random.Random(seed)
    for task in tasks:
        (checks,) = rng.choices(range(_MOST_CHECKS + 1), shares)
        yield {"messages": [*task.instruction, {"role": "assistant", "content": checked_solution(task, checks)}]}


def checked_solution(task: Task, checks: int) -> str:
    """A right answer behind its working and so many checks: ``7+5=12,1+0+1=2?12-5=7,2-0-1=1;22``.

    The first check takes the second number of each sum from its result, which must leave the first; the second check
    takes the first number.

    Raises:
        UserError: the working holds no sum.
    """
    working = task.metadata["working"]
    if checks and not _SUM.search(working):
        raise UserError(f"the working {working!r} of the task {task.id!r} holds no sum that could be checked")
    parts = [working, _checked(working, 2), _checked(working, 1)]
    return CHECK_MARK.join(parts[: 1 + checks]) + ANSWER_MARK + task.metadata["answer"]


def _checked(working: str, taken: int) -> str:
    """Every sum of a working as a subtraction of its first or second number."""

    def subtraction(match: re.Match) -> str:
        numbers, total = match[0].split("=")
        first, second, *carry = numbers.split("+")
        less, left = (first, second) if taken == 1 else (second, first)
        return f"{total}-{less}{'-1' if carry else ''}={left}"

    return _SUM.sub(subtraction, working)
