"""The forms in which benchmarks publish questions with choices, each as question, choices, answer and subject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import hashlib
import random
from typing import Any, NamedTuple

from k2jax.errors import abbreviate

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NO_HEADER = ("question", "A", "B", "C", "D", "answer")
"""Columns of MMLU's own CSV files, which do not name them."""
_WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


class ChoiceQuestion(NamedTuple):
    """A question with choices.

    Attributes:
        text: what is asked.
        choices: at least two.
        answer: place of the right one.
        subject: what it is about; empty where the record does not say.
    """

    text: str
    choices: tuple[str, ...]
    answer: int
    subject: str = ""


def read_question(record: Mapping[str, Any]) -> ChoiceQuestion:
    """The question of a record of MMLU, MMLU-Pro, C-Eval, GPQA, ARC or HellaSwag, by the names of its fields.

    Raises:
        KeyError: it has none of these forms.
        ValueError: a field has a wrong value.
    """
    if "Correct Answer" in record:
        return _gpqa(record)
    if "endings" in record:
        return _question(record["ctx"], record["endings"], record["label"], record.get("activity_label"))
    if "answerKey" in record:
        labels = [str(label) for label in record["choices"]["label"]]
        answer = labels.index(str(record["answerKey"]))
        return _question(record["question"], record["choices"]["text"], answer, record.get("subject"))
    subject = record.get("subject") or record.get("category")
    if "options" in record:
        answer = record.get("answer_index", record.get("answer"))
        return _question(record["question"], record["options"], answer, subject)
    if "choices" in record:
        return _question(record["question"], record["choices"], record["answer"], subject)
    choices = [record[letter] for letter in LETTERS if letter in record]
    return _question(record["question"], choices, record["answer"], subject)


def _gpqa(record: Mapping[str, Any]) -> ChoiceQuestion:
    """Its right answer comes first in every record: the order is drawn from the question's own text."""
    choices = [str(record["Correct Answer"]), *(str(record[name]) for name in _WRONG)]
    order = list(range(len(choices)))
    random.Random(hashlib.sha256(str(record["Question"]).encode()).digest()).shuffle(order)
    shuffled = [choices[place] for place in order]
    return _question(record["Question"], shuffled, order.index(0), record.get("High-level domain"))


def _question(text: Any, choices: Any, answer: Any, subject: Any) -> ChoiceQuestion:
    if not isinstance(text, str) or not text.strip():
        raise ValueError("its question is no text")
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not 2 <= len(choices) <= len(LETTERS):
        raise ValueError(f"it has no 2 to {len(LETTERS)} choices")
    if not all(isinstance(choice, str) for choice in choices):
        raise ValueError("a choice is no text")
    place = answer
    if isinstance(answer, str):
        place = int(answer) if answer.strip().isdecimal() else LETTERS.find(answer.strip().upper() or "?")
    if not isinstance(place, int) or not 0 <= place < len(choices):
        raise ValueError(f"its answer {abbreviate(answer)} is none of {len(choices)} choices")
    return ChoiceQuestion(text.strip(), tuple(choice.strip() for choice in choices), place, str(subject or ""))
