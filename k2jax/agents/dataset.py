"""Sources of tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from k2jax.agents.task import Task


class Dataset(Protocol):
    """A set of tasks; its registry names a function that makes it of options."""

    def load(self) -> Iterable[Task]:
        """The tasks, always in the same order."""
        ...
