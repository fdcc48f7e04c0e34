"""MBPP (Austin et al. 2021): Python functions to write from a sentence, with the assertions that they must pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k2jax.agents.split import FileSplit
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.tasks.code.dataset import ANSWER_FORMAT
from k2jax.tasks.record_fields import read_records

HELD_OUT = range(11, 511)
"""Task ids of the data set's own test split; its prompt, validation and training tasks are in ``train``."""


class MBPPTasks:
    """Functions to write; the domain is ``mbpp``. The prompt shows the assertions, as is usual for this data set.

    The challenge tests of a record are scored too, and not shown.
    """

    def __init__(self, path: str, split: FileSplit = "train"):
        """Records of a file.

        Args:
            path: JSONL in the format of MBPP (``text``, ``code``, ``test_list``, ...) or of its sanitized version
                (``prompt``, ``test_imports``).
            split: as the data set divides it, by ``task_id``, or ``all``.
        """
        self._path, self._split = path, split

    def load(self) -> Iterator[Task]:
        """The tasks in the order of the file; metadata hold the tests, the set-up and the canonical solution.

        Raises:
            UserError: the file cannot be read, or a record is no problem.
        """
        for number, record in enumerate(read_records("mbpp", self._path), 1):
            task = _task(record)
            if task is None:
                raise UserError(
                    f"mbpp: record {number} of {self._path} needs a task_id, a text or prompt, code, and test_list"
                )
            if self._split == "all" or (record["task_id"] in HELD_OUT) == (self._split == "test"):
                yield task


def _task(record: dict[str, Any]) -> Task | None:
    """The task of a record, or None where it is none."""
    text, code = record.get("text", record.get("prompt")), record.get("code")
    tests, hidden = record.get("test_list"), record.get("challenge_test_list") or []
    if not isinstance(text, str) or not isinstance(code, str) or not isinstance(record.get("task_id"), int):
        return None
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in [*tests, *hidden]):
        return None
    shown = "\n".join(tests)
    prompt = f"{text.strip()}\n\nYour code must pass these tests:\n\n```python\n{shown}\n```{ANSWER_FORMAT}"
    setup = [record.get("test_setup_code") or "", *(record.get("test_imports") or ())]
    return Task(
        id=str(record["task_id"]),
        domain="mbpp",
        instruction=({"role": "user", "content": prompt},),
        verifier="unit_tests",
        metadata={"tests": [*tests, *hidden], "setup": "\n".join(setup), "solution": code},
    )
