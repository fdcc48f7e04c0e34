"""What a server of environments offers: tasks come from clients, so what they may name is the operator's choice.

Most toolsets do all their work in the task's sandbox or on what the task holds itself, and every client may use them.
Others read files of this machine, reach its network, or run its packages: those are offered as the operator writes
them, options included, and in no other way.
"""

from __future__ import annotations

from collections.abc import Sequence
import shlex

from k2jax.agents.options import split_options
from k2jax.agents.registry import environments, toolsets
from k2jax.agents.task import Task
from k2jax.errors import UserError, abbreviate
from k2jax.tasks.tau2.toolset import DESK
from k2jax.tasks.verifiers.package import ENVIRONMENT

ENVIRONMENTS = ("dialogue", "files", "named_files", "single_turn", "tools")
"""Environments that are offered without being named."""
TOOLS = {
    "calculator": (),
    "edit": (),
    "python": ("timeout",),
    "search_world": (),
    "shell": ("timeout",),
    "store": (),
}
"""Toolsets that are offered without being named, each with the options that a task may choose."""


class Offer:
    """The environments and toolsets of a server.

    Args:
        environments: beside ``ENVIRONMENTS``, each with its options.
        tools: beside ``TOOLS``, each with its options.

    Raises:
        UserError: one of them is unknown.
    """

    def __init__(self, environments: Sequence[str] = (), tools: Sequence[str] = ()):
        self._environments = {_known(text, "environment") for text in environments}
        self._tools = {_known(text, "toolset") for text in tools}

    def check(self, task: Task) -> None:
        """Raises UserError where a task names what is not offered."""
        environment = _known(_environment_text(task), "environment")
        if environment not in self._environments and environment not in ENVIRONMENTS:
            _refuse("environment", "--environments", environment)
        for tool in task.tools:
            text = _tool_text(tool, task)
            if text not in self._tools and not _is_self_contained(text):
                _refuse("toolset", "--tools", text)


def _environment_text(task: Task) -> str:
    """A task's environment, with what the metadata say of it as options."""
    if task.environment != "verifiers":
        return task.environment
    told = _told(task, ENVIRONMENT)
    arguments = str(told.get("arguments", "{}"))
    options = [f"environment={told.get('environment', '')}", *([f"arguments={arguments}"] if arguments != "{}" else [])]
    return shlex.join(["verifiers", *options])


def _tool_text(tool: str, task: Task) -> str:
    """A toolset of a task in its normal form, with what the metadata say of it as options."""
    text = _known(tool, "toolset")
    folder = str(_told(task, DESK).get("folder", "")) if text == "tau2" else ""
    return shlex.join(["tau2", f"folder={folder}"]) if folder else text


def _told(task: Task, key: str) -> dict:
    told = task.metadata.get(key)
    return told if isinstance(told, dict) else {}


def _is_self_contained(text: str) -> bool:
    name, options = split_options(text, "toolset")
    return name in TOOLS and all(option.partition("=")[0] in TOOLS[name] for option in options)


def _known(text: str, noun: str) -> str:
    """A name with options, quoted in one way; UserError where there is none of this name."""
    name, options = split_options(text, noun)
    (environments if noun == "environment" else toolsets).path(name)
    return shlex.join([name, *options])


def _refuse(noun: str, flag: str, text: str) -> None:
    raise UserError(
        f"this server does not offer the {noun} {abbreviate(text, 200)}; its operator can, by {flag} and this text"
    )
