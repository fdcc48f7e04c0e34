"""Problems of mathematics with final answers, from a JSONL file or a Hugging Face data set such as GSM8K."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from k2jax.agents.split import Split, split_of
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.files.readers import undecoded
from k2jax.tasks.record_fields import read_records

ANSWER_FORMAT = "\n\nPut your final answer in \\boxed{}."
_FINAL = "####"
"""Stands before the final answer in GSM8K's solutions."""


class MathTasks:
    """Problems and final answers; the domain is ``math``."""

    def __init__(
        self,
        path: str = "",
        hub: str = "",
        subset: str = "",
        question: str = "question",
        answer: str = "answer",
        split: Split = "train",
    ):
        r"""Records of a file or of a data set on the Hugging Face hub.

        Args:
            path: a JSONL file; a tenth of its problems, by content, is the split ``test``.
            hub: id of a data set instead, with its own splits; problems of ``test`` are left out of ``train``.
            subset: its configuration, such as ``main``.
            question: key of the problem.
            answer: key of the solution; the final answer stands after ``####`` or in ``\boxed{}``, or is all of it.
            split: ``train`` or ``test``.

        Raises:
            UserError: both or neither of ``path`` and ``hub`` are given.
        """
        if bool(path) == bool(hub):
            raise UserError("math: give either path=FILE.jsonl or hub=ID of a Hugging Face data set")
        self._path, self._hub, self._subset, self._split = path, hub, subset, split
        self._question, self._answer = question, answer

    def load(self) -> Iterator[Task]:
        """The tasks in the order of their source; a problem that comes twice is taken once.

        Raises:
            UserError: the source cannot be read, or a record has no problem or answer.
        """
        seen: set[str] = set()
        for number, record in enumerate(self._records(), 1):
            problem, solution = record.get(self._question), record.get(self._answer)
            if not isinstance(problem, str) or not isinstance(solution, str | int | float) or not problem.strip():
                raise UserError(
                    f"math: record {number} of {self._path or self._hub} has no {self._question!r} and {self._answer!r}"
                )
            if problem in seen or (self._path and split_of(problem) != self._split):
                continue
            seen.add(problem)
            yield Task(
                id=str(number),
                domain="math",
                instruction=({"role": "user", "content": problem + ANSWER_FORMAT},),
                verifier="math",
                metadata={"answer": final_answer_of(str(solution))},
            )

    def _records(self) -> Iterable[Mapping[str, Any]]:
        if self._path:
            return read_records("math", self._path)
        try:
            from datasets import load_dataset
        except ModuleNotFoundError:
            raise UserError("math: hub= needs the package datasets; pip install 'k2jax[data]'") from None
        try:
            splits = {name: undecoded(rows) for name, rows in load_dataset(self._hub, self._subset or None).items()}
            records, held_out = splits[self._split], {record[self._question] for record in splits["test"]}
        except Exception as error:  # the hub's client raises many kinds
            raise UserError(f"math: cannot read {self._hub}: {str(error).splitlines()[0]}") from None
        return records if self._split == "test" else (r for r in records if r[self._question] not in held_out)


def final_answer_of(solution: str) -> str:
    r"""The final answer of a solution: after the last ``####``, else in the last ``\boxed{}``, else all of it."""
    if _FINAL in solution:
        return solution.rpartition(_FINAL)[2].strip().replace(",", "")
    boxed = last_boxed(solution)
    return solution.strip() if boxed is None else boxed


def last_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{}`` with balanced braces, or None."""
    begin = text.rfind("\\boxed{")
    if begin < 0:
        return None
    begin += len("\\boxed{")
    depth = 1
    for end in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if not depth:
            return text[begin:end].strip()
    return None
