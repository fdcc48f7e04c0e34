"""Problems of mathematics with final answers, from a JSONL file or a Hugging Face data set such as GSM8K."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import itertools
import re
from typing import Any

from k2jax.agents.split import FileSplit
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.files.readers import undecoded
from k2jax.tasks.record_fields import in_split, read_records

ANSWER_FORMAT = "\n\nPut your final answer in \\boxed{}."
_FINAL = "####"
"""Stands before the final answer in GSM8K's solutions."""
_BOXES = ("\\boxed{", "\\fbox{")
_GROUPED = re.compile(r"(?<![\d,])\d{1,3}(?:,\d{3})+(?!,?\d)")


class MathTasks:
    """Problems and final answers; the domain is ``math``."""

    def __init__(
        self,
        path: str = "",
        hub: str = "",
        subset: str = "",
        question: str = "question",
        answer: str = "answer",
        split: FileSplit = "train",
    ):
        r"""Records of a file or of a data set on the Hugging Face hub.

        Args:
            path: a JSONL file; a tenth of its problems, by content, is the split ``test``.
            hub: id of a data set instead, with its own splits; problems of ``test`` are left out of ``train``. One
                without a split ``test`` is divided as a file is.
            subset: its configuration, such as ``main``.
            question: key of the problem.
            answer: key of the solution; the final answer stands after ``####`` or in ``\boxed{}``, or is all of it.
            split: ``train``, ``test`` or ``all``.

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
        records, divided = (read_records("math", self._path), False) if self._path else self._hub_records()
        for number, record in enumerate(records, 1):
            problem, solution = record.get(self._question), record.get(self._answer)
            if not isinstance(problem, str) or not isinstance(solution, str | int | float) or not problem.strip():
                raise UserError(
                    f"math: record {number} of {self._path or self._hub} has no {self._question!r} and {self._answer!r}"
                )
            if problem in seen or not (divided or in_split(problem, self._split)):
                continue
            seen.add(problem)
            yield Task(
                id=str(number),
                domain="math",
                instruction=({"role": "user", "content": problem + ANSWER_FORMAT},),
                verifier="math",
                metadata={"answer": final_answer_of(str(solution))},
            )

    def _hub_records(self) -> tuple[Iterable[Mapping[str, Any]], bool]:
        """The records of a data set, and whether they are of the split already: it has a split ``test`` of its own."""
        try:
            from datasets import load_dataset
        except ModuleNotFoundError:
            raise UserError("math: hub= needs the package datasets; pip install 'k2jax[data]'") from None
        try:
            splits = {name: undecoded(rows) for name, rows in load_dataset(self._hub, self._subset or None).items()}
        except Exception as error:  # the hub's client raises many kinds
            raise UserError(f"math: cannot read {self._hub}: {str(error).splitlines()[0]}") from None
        if self._split == "all" or "test" not in splits:
            return itertools.chain.from_iterable(splits.values()), "test" in splits
        if self._split == "test":
            return splits["test"], True
        if "train" not in splits:
            raise UserError(f"math: {self._hub} has no split train, only {', '.join(splits)}")
        held_out = {record.get(self._question) for record in splits["test"]}
        return (record for record in splits["train"] if record.get(self._question) not in held_out), True


def final_answer_of(solution: str) -> str:
    r"""The final answer of a solution, whose commas between groups of three digits are left out.

    It is the last ``\boxed{}``, unless a line that begins with ``####`` comes after it; then it is what follows on that
    line, without asterisks around it. A solution with neither is the answer itself.
    """
    before, mark, after = solution.rpartition(_FINAL)
    boxed = last_boxed(after)
    if mark and boxed is None and after.strip():
        return _without_grouping(after.strip().splitlines()[0].strip("* "))
    boxed = boxed if boxed is not None else last_boxed(before)
    return _without_grouping(solution.strip() if boxed is None else boxed)


def _without_grouping(answer: str) -> str:
    """``1,234`` as ``1234``; commas of a pair, a set or a list stay."""
    plain = _GROUPED.sub(lambda number: number[0].replace(",", ""), answer)
    spaces = re.findall(r",(\s?)", plain)
    is_list = spaces or re.search(r"[(\[]|^\\?\{", answer)
    return plain if all(spaces) and (spaces or not is_list) else answer


def last_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{}`` or ``\fbox{}`` with balanced braces, or None."""
    begin = max(text.rfind(name) + len(name) if name in text else -1 for name in _BOXES)
    if begin < 0:
        return None
    depth = 1
    for end in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if not depth:
            return text[begin:end].strip()
    return None
