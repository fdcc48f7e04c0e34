"""For what an answer votes: its final answer as its verifier would read it, so that equal ones count together."""

from __future__ import annotations

from collections.abc import Callable
import re

from k2jax.tasks.characters.dataset import ANSWER_MARK
from k2jax.tasks.mathematics.dataset import last_boxed

_LINE = re.compile(r"^[^\S\n]*Answer:(.*)$", re.MULTILINE)
_MARKED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def _of_line(answer: str) -> str | None:
    lines = _LINE.findall(answer)
    return lines[-1].strip().removesuffix(".").strip().casefold() if lines else None


def _of_mark(answer: str) -> str | None:
    return answer.rpartition(ANSWER_MARK)[2] if ANSWER_MARK in answer else None


def _of_tags(answer: str) -> str | None:
    found = _MARKED.findall(answer)
    return found[-1].strip() if found else None


def _of_box(answer: str) -> str | None:
    boxed = last_boxed(answer)
    return boxed.replace(" ", "") if boxed else None


VOTES: dict[str, Callable[[str], str | None]] = {
    "answer_line": _of_line,
    "final_answer": _of_mark,
    "math": _of_box,
    "reasoning_gym": _of_tags,
}
"""By the verifier of a task: the vote of an answer, None where it has none."""
