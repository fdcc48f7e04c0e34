"""Questions and answers of evaluation sets: of files, and of the datasets that tasks are loaded from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from k2jax.agents.dataset import load_tasks
from k2jax.agents.options import parameters_of, split_options
from k2jax.agents.registry import datasets
from k2jax.data.document_files import file_parts
from k2jax.errors import UserError, abbreviate

QUESTIONS = ("question", "prompt", "problem", "problem_statement", "instruction", "query", "input", "text")
"""Fields of a record that may hold its question; the first one that is there does."""
ANSWERS = ("answer", "solution", "target", "canonical_solution", "completion", "output", "patch")
"""Fields that may hold the answer."""


class EvaluationItem(NamedTuple):
    """A question of an evaluation set.

    Attributes:
        set: name of the set.
        id: of the item within it.
        question: text.
        answer: text, or empty.
    """

    set: str
    id: str
    question: str
    answer: str


def read_items(against: str) -> list[EvaluationItem]:
    """The items of an evaluation set.

    Args:
        against: JSON lines or Parquet, a folder or a pattern of them; or a dataset with its options, as
            ``gsm8k path=FILE``, of which the test split is read.

    Raises:
        UserError: there is neither, or it has no questions.
    """
    name, options = split_options(against, "dataset")
    items = list(_of_dataset(name, options) if name in datasets.names() else _of_files(against))
    if not items:
        raise UserError(
            f"the evaluation set {abbreviate(against)} has no questions in the fields {', '.join(QUESTIONS)}"
        )
    return items


def _of_files(path: str) -> Iterator[EvaluationItem]:
    for part in file_parts(path, ""):
        for row, record in enumerate(part.records((*QUESTIONS, *ANSWERS, "id"))):
            question, answer = _first(record, QUESTIONS), _first(record, ANSWERS)
            if question:
                yield EvaluationItem(Path(part.name).name.split(".")[0], str(record.get("id", row)), question, answer)


def _first(record: Mapping[str, Any], fields: tuple[str, ...]) -> str:
    """The first field with a text; numbers and lists of texts are some."""
    for field in fields:
        value = record.get(field)
        if isinstance(value, list):
            value = " ".join(each for each in value if isinstance(each, str))
        if isinstance(value, str | int | float) and str(value).strip():
            return str(value)
    return ""


def _of_dataset(name: str, options: list[str]) -> Iterator[EvaluationItem]:
    splits = get_args(parameters_of(datasets.get(name))["split"].annotation)
    for task in load_tasks(name, options, "all" if "all" in splits else "test"):
        texts = [message["content"] for message in task.instruction if message["role"] == "user"]
        question = "\n".join(text for text in texts if isinstance(text, str))
        if question:
            yield EvaluationItem(name, task.id, question, _first(task.metadata, ANSWERS))
