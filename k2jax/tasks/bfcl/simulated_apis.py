"""APIs that Python classes simulate, as tools: the state lives in objects, and what an agent did is what they hold.

The classes are those of the Berkeley function-calling leaderboard's multi-turn tasks, or others of the same form that a
package declares: made without arguments, filled by ``_load_scenario(configuration)``, with public methods that take and
return JSON values. A task names them as ``k2jax.agents.registry.apis`` does, never by module.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
import copy
import inspect
import json
from typing import Any

from k2jax.agents.registry import apis
from k2jax.agents.task import Task
from k2jax.agents.toolsets.types import ToolError, Toolset, Workplace
from k2jax.errors import UserError, abbreviate

APIS = "apis"
"""Key of a task's metadata: ``{"classes": [name], "configuration", "tools", "long_context"}``."""


class SimulatedAPIs(Toolset):
    """The public methods of the objects of an episode.

    Attributes:
        objects: by the name of the class, known when it is open.
    """

    def __init__(self):
        self.objects: dict[str, Any] = {}
        self.tools: list[Mapping[str, Any]] = []
        self._methods: dict[str, Any] = {}

    def tools_of(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """See ``Toolset.tools_of``; none of a task that names no APIs, which ``open`` refuses."""
        named = task.metadata.get(APIS)
        return list(named.get("tools") or ()) if isinstance(named, Mapping) else ()

    async def open(self, workplace: Workplace) -> None:
        """Makes the objects in their first state.

        Raises:
            UserError: the task names no classes, or one that is not declared.
        """
        try:
            told = workplace.task.metadata[APIS]
            self.tools = list(told["tools"])
            self.objects = {name: _made(name, told) for name in class_names(told)}
        except (KeyError, TypeError, AttributeError) as error:
            reason = abbreviate(f"{type(error).__name__}: {error}")
            raise UserError(f"the APIs of the task {workplace.task.id!r} cannot be made: {reason}") from None
        for thing in self.objects.values():
            methods = inspect.getmembers(thing, predicate=inspect.ismethod)
            self._methods |= {name: method for name, method in methods if not name.startswith("_")}

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a method returns, as text or JSON.

        Raises:
            ToolError: it raised.
        """
        try:
            result = self._methods[name](**arguments)
            return result if isinstance(result, str) else json.dumps(result, default=str)
        except Exception as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error

    def differs_from(self, other: SimulatedAPIs) -> list[str]:
        """The public attributes, each after its class, that are not those of the same object of another."""
        return [
            f"{name}.{key}"
            for name, thing in self.objects.items()
            for key, value in vars(thing).items()
            if not key.startswith("_") and value != getattr(other.objects[name], key, None)
        ]


def class_names(told: Mapping[str, Any]) -> list[str]:
    """The names of declared classes in a record or a task.

    Raises:
        KeyError, TypeError: there are none.
    """
    names = told["classes"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("its classes are no list of names")
    return names


def _made(name: str, told: Mapping[str, Any]) -> Any:
    thing = apis.get(name)()
    load = getattr(thing, "_load_scenario", None)  # what has no state has none
    if load is not None:
        knows_length = "long_context" in inspect.signature(load).parameters
        length = {"long_context": bool(told.get("long_context"))} if knows_length else {}
        load(copy.deepcopy(told["configuration"].get(name, {})), **length)
    return thing


def read_call(text: str, tools: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a call written as Python, such as ``mv(source='a', destination='b')``.

    Raises:
        ValueError: it is no call of one of the tools with literal arguments.
    """
    try:
        call = ast.parse(text.strip(), mode="eval").body
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        names = list(schemas[call.func.id]["properties"])
        arguments = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
        return call.func.id, arguments | {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{abbreviate(text)} is no call of a tool: {error}") from None
