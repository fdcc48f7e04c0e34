"""The interface of every toolset: tools described by JSON schemas, and one asynchronous call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from k2jax.agents.roles import RoleClient
from k2jax.agents.sandbox import HostPaths, Sandbox
from k2jax.agents.sandbox.types import WORK
from k2jax.agents.task import Task
from k2jax.text.media_reading import IMAGE_PART
from k2jax.trajectory import Trajectory

USER_TURNS = "user_turns"
"""Key of a task's metadata: texts that the user says to the agent, one after each answer that calls no tool."""


class ToolError(Exception):
    """A call cannot be carried out, and the model is told why: it is the model's mistake, not the machine's."""


ToolResult = str | list[dict[str, Any]]
"""Text, or parts of a message's content: ``{"type": "text", "text": ...}`` and
``{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}``, which a model of images looks at."""


class Workplace(NamedTuple):
    """Where the tools of an episode work.

    Attributes:
        task: what is asked.
        seed: of the episode; what a tool draws at random depends on it alone.
        sandbox: the episode's sandbox, where one of its toolsets needs one.
        spawn: runs sub-episodes, see ``Rollout.spawn``; None where there is no rollout.
        client_of: the client of a role, see ``Services``.
    """

    task: Task
    seed: int
    sandbox: Sandbox | None = None
    spawn: Callable[..., Awaitable[Trajectory]] | None = None
    client_of: Callable[[str], RoleClient] | None = None


class Toolset:
    """Tools of one source, for one episode: ``tools`` and ``call``, and of the rest what a source needs.

    Attributes:
        needs_sandbox: whether ``open`` needs a sandbox.
        read_only: what ``SandboxSpec.read_only`` must name for it.
        concurrent: whether the calls of one answer may run at a time, with one another and with those of others; else
            they are carried out in their order, those of all such toolsets in the sandbox in one order. A call that
            spawns sub-episodes does so best before it waits for anything else: a later spawn waits until all other
            calls have ended or wait with one.
        tools: declarations in OpenAI's format, ``{"type": "function", "function": {"name", "description",
            "parameters"}}``, in order; complete when ``open`` has returned.
    """

    needs_sandbox = False
    read_only: HostPaths = ()
    concurrent: bool = False
    tools: Sequence[Mapping[str, Any]] = ()

    @staticmethod
    def options_of(task: Task) -> list[str]:
        """What a task's metadata choose of the toolset, as options ``name=value``: a server asks its operator."""
        return []

    def tools_of(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """Of a task's tools those that are known before an episode begins, see ``Environment.tools_of``."""
        return self.tools

    async def open(self, workplace: Workplace) -> None:
        """Begins an episode.

        Raises:
            InfrastructureError: something that it needs cannot be reached.
        """

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """The result of a call, see ``ToolResult``.

        Args:
            name: of one of ``tools``.
            arguments: valid under its schema.

        Raises:
            ToolError: the call is wrong; the model sees the message.
            InfrastructureError: what the tool runs on has failed.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Frees what the episode holds, but not the sandbox."""


def is_image_part(part: Any) -> bool:
    """Whether a value is a part of content with an image in a data URL: a tool must not make the host read others."""
    image = part.get(IMAGE_PART) if isinstance(part, Mapping) and part.get("type") == IMAGE_PART else None
    url = image.get("url") if isinstance(image, Mapping) else None
    return isinstance(url, str) and url.startswith("data:image/")


def declared(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's format; ``parameters`` is a JSON schema of an object."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def in_folder(tools: Sequence[Mapping[str, Any]], folder: str) -> Sequence[Mapping[str, Any]]:
    """Tools whose texts say ``/work``, where commands and relative paths begin in another folder."""
    return tools if folder == WORK else [_with_folder(tool, folder) for tool in tools]


def _with_folder(value: Any, folder: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_folder(each, folder) for key, each in value.items()}
    return value.replace(f" {WORK}", f" {folder}") if isinstance(value, str) else value


def parameters_of(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }
