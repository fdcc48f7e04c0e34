"""An imperfect teacher of character problems: demonstrations for SFT, and unlabelled text for pretraining.

The teacher writes most answers at once, which a small model learns badly, and works out the rest. A model trained on
its demonstrations therefore solves only a part of the problems, and reinforcement learning has something to find.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import random
from typing import Any, Literal

from k2jax.env.task import Task
from k2jax.env.tasks.characters import ANSWER_MARK
from k2jax.errors import UserError

Style = Literal["direct", "worked"]


def demonstrations(tasks: Iterable[Task], direct: float = 0.6, seed: int = 0) -> Iterator[dict[str, Any]]:
    """One conversation for every task: ``{"messages": [user, assistant]}``.

    Args:
        tasks: character tasks.
        direct: share of answers without working; 0 is a clean teacher, who works out all of them.
        seed: of the choice of styles.

    Raises:
        UserError: ``direct`` is no share.
    """
    if not 0 <= direct <= 1:
        raise UserError(f"the share of direct answers is {direct}; it must be between 0 and 1")
    rng = random.Random(seed)
    for task in tasks:
        answer = solution(task, "direct" if rng.random() < direct else "worked")
        yield {"messages": [*task.instruction, {"role": "assistant", "content": answer}]}


def pretraining_texts(tasks: Iterable[Task]) -> Iterator[str]:
    """One document for every task: the problem, its working and its answer."""
    for task in tasks:
        yield task.instruction[0]["content"] + solution(task, "worked")


def solution(task: Task, style: Style) -> str:
    """A right answer in a style: ``579`` or ``3+6=9,2+5=7,1+4=5;579``."""
    answer = task.metadata["answer"]
    return answer if style == "direct" else f"{task.metadata['working']}{ANSWER_MARK}{answer}"


def style_of(answer: str) -> Style:
    """The style of an answer, right or wrong: ``worked`` where something stands before the mark of the answer."""
    return "worked" if answer.rpartition(ANSWER_MARK)[0] else "direct"
