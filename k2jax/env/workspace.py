"""Environments in whose sandbox an agent may also work by itself: what a black-box scaffold opens instead of stepping.

One task can then be solved by either kind of scaffold: white-box ones call the environment's tools, and a black-box
agent is a program in the same folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from k2jax.env.task import Task
from k2jax.sandbox import Sandbox, SandboxSpec

OUTCOME = "outcome"
"""Key of a trajectory's metadata: what ``collect`` returned, for the verifier."""


class Workspace(Protocol):
    """An environment with a folder ``/work`` that holds what the task is about."""

    async def open_workspace(self, task: Task, seed: int, needs: SandboxSpec) -> Sandbox:
        """A new sandbox whose folder ``/work`` is as the task begins; an earlier one is closed.

        Args:
            task: the task.
            seed: of the episode.
            needs: what the agent needs of the sandbox beside what the environment itself does.

        Raises:
            SandboxError: it cannot be opened.
            UserError: the task is none of this environment's.
        """
        ...

    async def collect(self) -> Mapping[str, Any]:
        """What is left of the agent's work, as JSON values, before the sandbox is closed.

        Raises:
            SandboxError: the sandbox failed.
        """
        ...

    async def close(self) -> None:
        """Closes the sandbox."""
        ...
