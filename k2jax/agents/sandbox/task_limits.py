"""What a task may set of the limits of its sandboxes and tests."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

from k2jax.agents.options import parse_options
from k2jax.agents.sandbox.types import MEBI, Limits
from k2jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class TaskLimits:
    """What a task needs of its sandboxes and tests; 0 is the choice of its environment and its verifier.

    They are the user's: neither a record of a data set nor a client of a server chooses them.

    Attributes:
        memory: of each sandbox [MiB].
        disk: bytes of the files in it [MiB].
        files: how many files it may have.
        processes: processes and threads of it.
        test_seconds: wall time of the verifier's tests [s].
    """

    memory: int = 0
    disk: int = 0
    files: int = 0
    processes: int = 0
    test_seconds: float = 0.0

    def of(self, limits: Limits) -> Limits:
        """A sandbox's limits with those of the task in their place."""
        sizes = {"memory": self.memory * MEBI, "disk": self.disk * MEBI}
        chosen = sizes | {"files": self.files, "processes": self.processes}
        return dataclasses.replace(limits, **{name: value for name, value in chosen.items() if value})

    def set_limits(self) -> dict[str, Any]:
        """Those that the task sets, by name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value}


def chosen_limits(texts: Sequence[str]) -> dict[str, Any]:
    """Fields of TaskLimits from texts such as ``memory=2048``.

    Raises:
        UserError: there is no such limit, or it is no positive number.
    """
    values = parse_options(TaskLimits, texts, "the limits of a task", given=())
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise UserError(f"the limit {name} of a task is {value}; it must be positive")
    return values
