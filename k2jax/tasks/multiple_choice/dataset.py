"""Questions with choices as tasks: to answer with a letter, or to choose by the likelihood of the choices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from k2jax.agents.split import FileSplit
from k2jax.agents.task import Task
from k2jax.errors import UserError, abbreviate
from k2jax.tasks.answer_line import ANSWER_FORMAT
from k2jax.tasks.generated import user
from k2jax.tasks.multiple_choice.forms import LETTERS, NO_HEADER, ChoiceQuestion, read_question
from k2jax.tasks.record_fields import in_split, read_records
from k2jax.tasks.table_files import TABLES, csv_records, csv_rows

CONTINUATIONS = "continuations"
"""Key of a task's metadata: the texts of which a model's likelihood chooses one."""
ANSWER = "answer"
"""Key of a task's metadata: letter of the right choice."""
_ENDS = (*TABLES, ".jsonl", ".gz")


class MultipleChoice:
    """Questions of a file or of all files of a folder; the domain is the subject.

    Styles: ``answer`` asks for a letter on a last line; ``letter`` ends in "Answer:", of which letters are the
    continuations, as MMLU is asked of base models; ``text`` does not show the choices, which are the continuations
    themselves, as of HellaSwag and ARC.
    """

    def __init__(
        self,
        path: str,
        style: Literal["answer", "letter", "text"] = "answer",
        examples: str = "",
        shots: int = 0,
        split: FileSplit = "train",
    ):
        """A set of questions.

        Args:
            path: JSON lines, CSV or Parquet in the form of MMLU (its CSV files without a header too), MMLU-Pro, C-Eval,
                GPQA, ARC or HellaSwag; or a folder of such files, whose names are the subjects of records that name
                none.
            style: how they are asked.
            examples: a file or folder of the same form, whose questions are shown with their answers.
            shots: so many of them, of the question's subject, in their order.
            split: ``all`` of a benchmark's file, ``test`` for a tenth, by content, or ``train``.

        Raises:
            UserError: there are shots without examples, or none with examples.
        """
        if bool(examples) != (shots > 0):
            raise UserError("multiple_choice: shots=N and examples=FILE come together")
        self._path, self._style, self._examples, self._shots, self._split = path, style, examples, shots, split

    def load(self) -> Iterator[Task]:
        """The tasks in the order of the files.

        Raises:
            UserError: a file cannot be read, a record is no question, or a subject has too few examples.
        """
        shown: dict[str, list[ChoiceQuestion]] = defaultdict(list)
        for _, example in _questions(self._examples) if self._examples else ():
            shown[example.subject].append(example)
        for name, question in _questions(self._path):
            if not in_split(question.text, self._split):
                continue
            examples = shown[question.subject][: self._shots]
            if len(examples) < self._shots:
                raise UserError(
                    f"multiple_choice: {self._examples} has {len(examples)} examples of "
                    f"{abbreviate(question.subject) or 'no subject'}, and not {self._shots}"
                )
            yield self._task(name, question, examples)

    def _task(self, name: str, question: ChoiceQuestion, examples: list[ChoiceQuestion]) -> Task:
        letter = LETTERS[question.answer]
        asked = [f"{self._shown(example)}{self._continuations(example)[example.answer]}" for example in examples]
        asked.append(self._shown(question) + (f"\n\n{ANSWER_FORMAT}" if self._style == "answer" else ""))
        return Task(
            id=name,
            domain=question.subject or "multiple_choice",
            instruction=(user("\n\n".join(asked)),),
            verifier="answer_line",
            metadata={ANSWER: letter, CONTINUATIONS: self._continuations(question), "choices": question.choices},
        )

    def _shown(self, question: ChoiceQuestion) -> str:
        if self._style == "text":
            return question.text
        lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, question.choices, strict=False)]
        return "\n".join([question.text, *lines]) + ("\nAnswer:" if self._style == "letter" else "")

    def _continuations(self, question: ChoiceQuestion) -> list[str]:
        before = {"answer": "\nAnswer: ", "letter": " ", "text": " "}[self._style]
        choices = question.choices if self._style == "text" else LETTERS[: len(question.choices)]
        return [before + choice for choice in choices]


def _questions(path: str) -> Iterator[tuple[str, ChoiceQuestion]]:
    """Names and questions of a file or folder."""
    place = Path(path).expanduser()
    files = sorted(file for file in place.iterdir() if file.suffix in _ENDS) if place.is_dir() else [place]
    if not files:
        raise UserError(f"multiple_choice: no file of {path} ends in {', '.join(_ENDS)}")
    for file in files:
        subject = file.name.partition(".")[0]
        for number, record in enumerate(_records(file), 1):
            try:
                question = read_question(record)
            except (KeyError, ValueError, TypeError) as error:
                why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                raise UserError(f"multiple_choice: record {number} of {file} is no question: {why}") from None
            of_folder = {} if question.subject or not place.is_dir() else {"subject": _subject(subject)}
            yield f"{subject}/{number}", question._replace(**of_folder)


def _subject(name: str) -> str:
    """A subject by the name of a file: MMLU's end in the name of their part."""
    for part in ("_test", "_val", "_dev"):
        name = name.removesuffix(part)
    return name


def _records(file: Path) -> Iterator[dict]:
    if file.suffix == ".csv" and not _has_header(file):
        return csv_records("multiple_choice", file, NO_HEADER)
    return read_records("multiple_choice", str(file))


def _has_header(file: Path) -> bool:
    """Whether the first row names columns: of MMLU's own files it is a question, which ends in a letter."""
    names = next(csv_rows("multiple_choice", file), [])
    return len(names) != len(NO_HEADER) or names[-1] not in LETTERS[:4]
