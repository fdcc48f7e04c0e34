"""What yields tasks, and how a config loads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from k2jax.agents.options import parse_options
from k2jax.agents.registry import datasets
from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.errors import UserError


class Dataset(Protocol):
    """A finite set of tasks."""

    def load(self) -> Iterable[Task]:
        """The tasks, in the same order at every call."""
        ...


def load_tasks(dataset: str, options: Sequence[str] = (), split: Split = "train") -> list[Task]:
    """The tasks of a dataset, in its order.

    Example:
        >>> tasks = load_tasks("characters", ("kinds=add3+sort6", "count=100"), split="test")

    Args:
        dataset: its name.
        options: ``name=value`` for keyword parameters of its maker; lists are written ``a+b``.
        split: ``train``, or ``test`` for held-out tasks, which share no prompt with training.

    Raises:
        UserError: an unknown dataset or option, a value that cannot be read, or two tasks of one id.
    """
    maker = datasets.get(dataset)
    tasks = list(maker(split=split, **parse_options(maker, options, f"dataset {dataset!r}")).load())
    if not tasks:
        raise UserError(f"the dataset {dataset!r} has no tasks in the split {split!r} with these options")
    if len({task.id for task in tasks}) < len(tasks):
        raise UserError(f"the dataset {dataset!r} has several tasks of one id; its maker must number them")
    return tasks
