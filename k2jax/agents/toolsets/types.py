"""The interface of every toolset: tools described by JSON schemas, and one asynchronous call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from k2jax.agents.sandbox import HostPaths, Sandbox
from k2jax.agents.task import Task
from k2jax.trajectory import Trajectory


class ToolError(Exception):
    """A call cannot be carried out, and the model is told why: it is the model's mistake, not the machine's."""


class Workplace(NamedTuple):
    """Where the tools of an episode work.

    Attributes:
        task: what is asked.
        seed: of the episode; what a tool draws at random depends on it alone.
        sandbox: the episode's sandbox, where one of its toolsets needs one.
        spawn: runs sub-episodes, see ``Rollout.spawn``; None where there is no rollout.
    """

    task: Task
    seed: int
    sandbox: Sandbox | None = None
    spawn: Callable[[Task], Awaitable[Trajectory]] | None = None


class Toolset(Protocol):
    """Tools of one source, for one episode.

    Attributes:
        needs_sandbox: whether ``open`` needs a sandbox.
        read_only: what ``SandboxSpec.read_only`` must name for it.
        tools: declarations in OpenAI's format, ``{"type": "function", "function": {"name", "description",
            "parameters"}}``, in order; complete when ``open`` has returned.
    """

    needs_sandbox: bool
    read_only: HostPaths
    tools: Sequence[Mapping[str, Any]]

    async def open(self, workplace: Workplace) -> None:
        """Begins an episode.

        Raises:
            InfrastructureError: something that it needs cannot be reached.
        """
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The result of a call, as text.

        Args:
            name: of one of ``tools``.
            arguments: valid under its schema.

        Raises:
            ToolError: the call is wrong; the model sees the message.
            InfrastructureError: what the tool runs on has failed.
        """
        ...

    async def close(self) -> None:
        """Frees what the episode holds, but not the sandbox."""
        ...


def declared(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's format; ``parameters`` is a JSON schema of an object."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def parameters_of(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }
