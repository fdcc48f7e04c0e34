"""What a server of environments offers: tasks come from clients, so what they may name is the operator's choice.

Most toolsets do all their work in the task's sandbox or on what the task holds itself, and every client may use them.
Others read files of this machine, reach its network, or run its packages: those are offered as the operator writes
them, options included, and in no other way.
"""

from __future__ import annotations

from collections.abc import Sequence
import shlex

from k2jax.agents.environment import Environment
from k2jax.agents.options import split_options
from k2jax.agents.registry import Registry, environments, toolsets
from k2jax.agents.sandbox.task_limits import chosen_limits
from k2jax.agents.task import Task
from k2jax.agents.toolsets import Toolset
from k2jax.errors import UserError, abbreviate

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
        limits: most that a task may set, each ``NAME=value``, see ``TaskLimits``; one that is not named, none may set.

    Raises:
        UserError: one of them is unknown.
    """

    def __init__(self, environments: Sequence[str] = (), tools: Sequence[str] = (), limits: Sequence[str] = ()):
        self._limits = chosen_limits(limits)
        self._environments = {_known(text, "environment") for text in environments}
        self._tools = {_known(text, "toolset") for text in tools}

    def check(self, task: Task) -> None:
        """Raises UserError where a task names what is not offered."""
        environment = _text(environments, "environment", task.environment, task)
        if environment not in self._environments and environment not in ENVIRONMENTS:
            _refuse("environment", "--environments", environment)
        for tool in task.tools:
            text = _text(toolsets, "toolset", tool, task)
            if text not in self._tools and not _is_self_contained(text):
                _refuse("toolset", "--tools", text)
        for name, value in task.limits.set_limits().items():
            if value > self._limits.get(name, 0):
                _refuse("limit", "--limits", f"{name}={value:g}")


def _text(registry: Registry, noun: str, text: str, task: Task) -> str:
    """What a task names in its normal form, with what its metadata say of it as options."""
    text = _known(text, noun)
    name, options = split_options(text, noun)
    if options:
        return text
    made = registry.get(name)
    # The maker of a toolset may be a function, such as ``calculator``: its task chooses nothing.
    chosen = made.options_of(task) if isinstance(made, type) and issubclass(made, Environment | Toolset) else []
    return shlex.join([name, *chosen])


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
