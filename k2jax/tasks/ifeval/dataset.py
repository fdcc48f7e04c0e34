"""IFEval (Zhou et al. 2023, arXiv:2311.07911): requests with instructions on their answers that a program verifies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from k2jax.agents.split import FileSplit
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.tasks.ifeval.checks import CHECKS, VALUES
from k2jax.tasks.record_fields import in_split, read_records


class IFEvalTasks:
    """Prompts of a file in the published form; the domain is ``ifeval``."""

    def __init__(self, path: str, mode: Literal["strict", "loose"] = "strict", split: FileSplit = "train"):
        """A set of prompts.

        Args:
            path: JSONL of records with ``key``, ``prompt``, ``instruction_id_list`` and ``kwargs``, one object for each
                instruction.
            mode: what the reward is: ``loose`` forgives asterisks and a first or last line beside the answer.
            split: ``train``, ``test`` or ``all``, by content.
        """
        self._path, self._mode, self._split = path, mode, split

    def load(self) -> Iterator[Task]:
        """The tasks in the order of the file.

        Raises:
            UserError: the file cannot be read, or a record is no task.
        """
        for record in read_records("ifeval", self._path):
            try:
                task = self._task(record)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise UserError(f"ifeval: the record {record.get('key')!r} is no task: {error!r}") from None
            if in_split(task.instruction[0]["content"], self._split):
                yield task

    def _task(self, record: Mapping[str, Any]) -> Task:
        pairs = zip(record["instruction_id_list"], record["kwargs"], strict=True)
        instructions = [[name, _values(name, given)] for name, given in pairs]
        if not instructions:
            raise ValueError("no instruction")
        return Task(
            id=str(record["key"]),
            domain="ifeval",
            instruction=({"role": "user", "content": str(record["prompt"])},),
            verifier="ifeval",
            metadata={"instructions": instructions, "mode": self._mode},
        )


def _values(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an instruction; files of one table have those of all others too, which are null there."""
    if name not in CHECKS:
        raise ValueError(f"unknown instruction {name}")
    values = {}
    for key, kind in VALUES.get(name, {}).items():
        value = int(given[key]) if kind is int else given[key]
        words = value if isinstance(value, list) else [value]
        if not isinstance(value, kind) or (kind is list and not all(isinstance(word, str) for word in words)):
            raise ValueError(f"{name} has no {key}")
        values[key] = value
    return values
