"""Environments in whose sandbox an agent may also work by itself: what a black-box scaffold opens instead of stepping.

One task can then be solved by either kind of scaffold: white-box ones call the environment's tools, and a black-box
agent is a program in the same folder.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any, Protocol

from k2jax.agents.sandbox import Limits, Sandbox, SandboxSpec
from k2jax.agents.task import Task


class Workspace(Protocol):
    """An environment with a folder that holds what the task is about.

    Attributes:
        folder: inside the sandbox.
    """

    folder: str

    async def open_workspace(self, task: Task, needs: SandboxSpec) -> Sandbox:
        """A new sandbox whose folder is as the task begins; an earlier one is closed.

        Args:
            task: the task.
            needs: what the agent needs of the sandbox beside what the environment itself does.

        Raises:
            InfrastructureError: it cannot be opened or filled.
            UserError: the task is none of this environment's.
        """
        ...

    async def collect(self) -> Mapping[str, Any]:
        """What the verifier needs of the agent's work, as JSON values, before the sandbox is closed.

        Raises:
            InfrastructureError: it cannot be read.
        """
        ...


def joined_spec(spec: SandboxSpec, more: SandboxSpec) -> SandboxSpec:
    """A sandbox that has what either of two has; the image is the first one's, and each limit the higher one."""
    names = [field.name for field in dataclasses.fields(Limits)]
    limits = Limits(**{name: max(getattr(spec.limits, name), getattr(more.limits, name)) for name in names})
    read_only = tuple(dict.fromkeys((*spec.read_only, *more.read_only)))
    return dataclasses.replace(spec, read_only=read_only, limits=limits, env={**spec.env, **more.env})
