"""The tasks that commands of this package are given: of a dataset by name, or of a file of tasks."""

from __future__ import annotations

from collections.abc import Sequence

from k2jax.agents.dataset import load_tasks
from k2jax.agents.split import FileSplit
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.tasks.task_lines import read_tasks


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
    tasks = list(read_tasks(name, "all"))
    if not tasks or len({task.id for task in tasks}) < len(tasks):
        raise UserError(f"{name} has no tasks, or several of one id")
    return tasks[: count or None]
