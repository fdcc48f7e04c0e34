"""Programming tasks with unit tests from a JSONL file."""

from __future__ import annotations

from collections.abc import Iterator

from k2jax.agents.split import FileSplit
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.tasks.record_fields import in_split, read_records

ANSWER_FORMAT = "\n\nWrite the whole program in one block of code that begins with ```python and ends with ```."


class CodeTasks:
    """Functions to write; the domain is ``code``.

    The tests never enter a sandbox in which a model acts: they are in the task's metadata until the verifier runs them.
    """

    def __init__(self, path: str, split: FileSplit = "train"):
        """Records of a file.

        Args:
            path: JSONL with ``prompt``, ``tests`` (a list of Python sources, each of which passes or raises, such as
                ``assert add(1, 2) == 3``) and optionally ``setup`` (Python source that comes before each).
            split: ``train``, ``test`` for a tenth of the prompts, by content, or ``all``.
        """
        self._path, self._split = path, split

    def load(self) -> Iterator[Task]:
        """The tasks in the order of the file; a prompt that comes twice is taken once.

        Raises:
            UserError: the file cannot be read, or a record is no task.
        """
        seen: set[str] = set()
        for number, record in enumerate(read_records("code", self._path), 1):
            prompt, tests, setup = record.get("prompt"), record.get("tests"), record.get("setup", "")
            if not isinstance(prompt, str) or not isinstance(setup, str) or not _are_tests(tests):
                raise UserError(f"code: record {number} of {self._path} needs a prompt and a list of tests as text")
            if prompt in seen or not in_split(prompt, self._split):
                continue
            seen.add(prompt)
            yield Task(
                id=str(number),
                domain="code",
                instruction=({"role": "user", "content": prompt + ANSWER_FORMAT},),
                verifier="unit_tests",
                metadata={"tests": tests, "setup": setup},
            )


def _are_tests(tests: object) -> bool:
    return isinstance(tests, list) and bool(tests) and all(isinstance(test, str) for test in tests)
