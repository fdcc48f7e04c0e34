"""The verifier of tasks whose answer is a name or a number on a line of its own."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
import re

from k2jax.agents.task import Task
from k2jax.agents.verifier import judges_every_answer
from k2jax.trajectory import Reward

ANSWER_FORMAT = 'Write the answer alone on the last line, as "Answer: ...".'
_LINE = re.compile(r"^[^\S\n]*Answer:(.*)$", re.MULTILINE)  # a line's own white space: all of it would cost n^2


@judges_every_answer(lambda task: f"Answer: {task.metadata['answer']}")
def answer_line(task: Task, answer: str) -> Reward:
    """1 if the last line that begins with ``Answer:`` has the right name or number, else 0.

    Case, surrounding white space and a final period do not matter; numbers are compared as numbers.
    """
    lines = _LINE.findall(answer)
    if not lines:
        return Reward(0.0, info={"marked": False})
    return Reward(float(_same(lines[-1], str(task.metadata["answer"]))), info={"marked": True})


def _same(given: str, right: str) -> bool:
    given, right = (text.strip().removesuffix(".").strip() for text in (given, right))
    try:
        return Decimal(given.replace(",", "")) == Decimal(right)
    except InvalidOperation:
        return given.casefold() == right.casefold()
