"""What yields tasks, and how a config loads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, get_args

from k2jax.agents.options import parameters_of, parse_options
from k2jax.agents.registry import datasets
from k2jax.agents.split import FileSplit, Split
from k2jax.agents.task import Task
from k2jax.errors import UserError, abbreviate


class Dataset(Protocol):
    """A finite set of tasks."""

    def load(self) -> Iterable[Task]:
        """The tasks, in the same order at every call."""
        ...


def load_tasks(dataset: str, options: Sequence[str] = (), split: FileSplit = "train") -> list[Task]:
    """The tasks of a dataset, in its order.

    Example:
        >>> tasks = load_tasks("characters", ("kinds=add3+sort6", "count=100"), split="test")

    Args:
        dataset: its name.
        options: ``name=value`` for keyword parameters of its maker; lists are written ``a+b``.
        split: ``train``, ``test`` (held-out, which shares no prompt with training), or ``all`` of a file.

    Raises:
        UserError: an unknown dataset, split or option, a value that cannot be read, or two tasks of one id.
    """
    maker = datasets.get(dataset)
    if split not in (names := get_args(parameters_of(maker)["split"].annotation) or get_args(Split)):
        raise UserError(f"the dataset {dataset!r} has no split {abbreviate(split)}, only {', '.join(names)}")
    tasks = list(maker(split=split, **parse_options(maker, options, f"dataset {dataset!r}")).load())
    if not tasks:
        raise UserError(f"the dataset {dataset!r} has no tasks in the split {split!r} with these options")
    if len({task.id for task in tasks}) < len(tasks):
        raise UserError(f"the dataset {dataset!r} has several tasks of one id; its maker must number them")
    return tasks
