"""The tasks that commands of this package are given: of a dataset by name, or of a file of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from k2jax.agents.dataset import load_tasks
from k2jax.agents.split import FileSplit
from k2jax.agents.task import Task
from k2jax.errors import UserError

MOST_TASK_BYTES = 1 << 22
"""Of a line of a file of tasks."""


def listed_tasks(name: str, options: Sequence[str], split: FileSplit, count: int) -> list[Task]:
    """Tasks in their order.

    Args:
        name: of a dataset, or a file of tasks that ends with ``.jsonl``.
        options: of the dataset.
        split: of the dataset.
        count: the first so many; 0 is all.

    Raises:
        UserError: there is no such dataset or file, or a line of it is no task.
    """
    if not name.endswith(".jsonl"):
        return load_tasks(name, options, split)[: count or None]
    if options:
        raise UserError(f"--options are of datasets, and {name} is a file of tasks; leave them out")
    tasks = []
    try:
        with open(Path(name).expanduser(), "rb") as file:
            for number, line in enumerate(file, 1):
                if len(line) > MOST_TASK_BYTES:
                    raise UserError(f"line {number} of {name} has more than {MOST_TASK_BYTES:,} bytes")
                tasks.append(Task.from_json(line.decode(errors="replace")))
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}") from None
    if not tasks or len({task.id for task in tasks}) < len(tasks):
        raise UserError(f"{name} has no tasks, or several of one id")
    return tasks[: count or None]
