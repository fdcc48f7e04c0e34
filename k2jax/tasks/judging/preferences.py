"""Preference pairs as a judge's dialogues, to fine-tune a model on before it judges (Kimi K2, section 3.2.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import random
from typing import Any, get_args

from k2jax.agents.judges.judge_formats import JUDGE_FORMATS, OTHER, Choice, Comparison
from k2jax.agents.judges.rubrics import Rubric, rubrics_for
from k2jax.agents.task import Task
from k2jax.errors import UserError, abbreviate
from k2jax.tasks.characters.dataset import ANSWER_MARK
from k2jax.tasks.characters.teacher import solutions
from k2jax.tasks.record_fields import read_records

FIELDS = ("prompt", "first", "second", "verdict")


@dataclasses.dataclass(frozen=True)
class Preference:
    """Which of two answers somebody prefers.

    Attributes:
        prompt: the question.
        first: an answer.
        second: another one.
        verdict: the preferred one, or a tie.
        rubric: what the annotator compared them by; empty for the general rubrics alone.
        reasons: what a judge says before the verdict; it names the answers A and B and is left out where their order
            is the other one. Empty for none.
        domain: tag of the task, which chooses among the rubrics.
    """

    prompt: str
    first: str
    second: str
    verdict: Choice
    _: dataclasses.KW_ONLY
    rubric: str = ""
    reasons: str = ""
    domain: str = ""


def read_preferences(path: str) -> Iterator[Preference]:
    """The preferences of a JSONL file, whose lines have the fields of ``Preference``.

    Raises:
        UserError: the file cannot be read, a line lacks a field, has an unknown one or one that is no text, or its
            verdict is none of first, second and tie.
    """
    known = [field.name for field in dataclasses.fields(Preference)]
    for number, record in enumerate(read_records("preferences", path), 1):
        place = f"preference {number} of {path}"
        for key in FIELDS:
            if key not in record:
                raise UserError(f"{place} has no field {key!r}")
        for key, value in record.items():
            if key not in known or not isinstance(value, str):
                raise UserError(f"{place}: {abbreviate(key)} is no field {', '.join(known)} with a text")
        if record["verdict"] not in get_args(Choice):
            raise UserError(f"{place} has the verdict {abbreviate(record['verdict'])}; write first, second or tie")
        yield Preference(**record)


def judge_dialogues(
    preferences: Iterable[Preference], style: str, rubrics: Sequence[Rubric] = ()
) -> Iterator[dict[str, Any]]:
    """Two conversations for every preference, one in each order: ``{"messages": [user, assistant]}``.

    Args:
        preferences: what is known.
        style: name of the judge's format.
        rubrics: those of all tasks; the preference's own comes last.
    """
    judge = JUDGE_FORMATS[style]
    for preference in preferences:
        metadata = {"rubric": preference.rubric} if preference.rubric else {}
        chosen = rubrics_for(Task(preference.prompt, preference.domain, (), "", metadata=metadata), rubrics)
        forth = Comparison(preference.prompt, preference.first, preference.second)
        for comparison, verdict, reasons in (
            (forth, preference.verdict, preference.reasons),
            (forth.swapped(), OTHER[preference.verdict], ""),
        ):
            yield {
                "messages": [
                    {"role": "user", "content": judge.ask(comparison, chosen)},
                    {"role": "assistant", "content": judge.write(verdict, reasons)},
                ]
            }


def character_preferences(tasks: Iterable[Task], direct: float = 0.0, seed: int = 0) -> Iterator[Preference]:
    """One preference for every character task: its right solution, and the same with a mistake in the answer.

    One character of the answer is another one. Both solutions have one length and one style, which therefore tell
    nothing; where there is a working, the right answer can be read from it.

    Args:
        tasks: character tasks.
        direct: share of pairs without working.
        seed: of the choice of mistakes, places and styles.

    Raises:
        UserError: ``direct`` is no share.
    """
    rng = random.Random(seed)
    for task, right in solutions(tasks, direct, rng):
        wrong = _with_mistake(right, rng)
        first, second = rng.sample((right, wrong), 2)
        verdict: Choice = "first" if first == right else "second"
        yield Preference(task.instruction[0]["content"], first, second, verdict, domain=task.domain)


def _with_mistake(right: str, rng: random.Random) -> str:
    """A solution with a wrong answer: one character of it is another one of its kind."""
    working, mark, answer = right.rpartition(ANSWER_MARK)
    place = rng.randrange(len(answer))
    alphabet = "0123456789" if answer[place].isdigit() else "abcdefghij"
    other = rng.choice([letter for letter in alphabet if letter != answer[place]])
    return f"{working}{mark}{answer[:place]}{other}{answer[place + 1 :]}"
