"""Python functions as tools: the schema comes from the signature, the description from the docstring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import inspect
import re
import types
from typing import Any, Literal, Union, get_args, get_origin

from k2jax.agents.toolsets.types import ToolError, ToolResult, Toolset, declared, is_image_part, parameters_of
from k2jax.errors import InfrastructureError, UserError

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_SECTIONS = re.compile(r"^(Args|Returns|Raises|Example|Examples|Note|Notes|Yields|Attributes):", re.MULTILINE)


class FunctionTools(Toolset):
    """Functions as tools, in order; they may be coroutines, and methods of an object that holds state.

    An exception of a function is an error message to the model. A function must not block the event loop for long.

    Args:
        functions: each is a tool.
        concurrent: whether calls of one answer may run at a time, see ``Toolset``; by default where none is a method
            or closes over variables, which may be state that calls share.

    Example:
        >>> def add(a: int, b: int) -> int:
        ...     "Adds two integers."
        ...     return a + b
        >>> FunctionTools([add]).tools[0]["function"]["parameters"]["required"]
        ['a', 'b']

    Raises:
        UserError: a parameter has no annotation, or one that JSON does not know.
    """

    def __init__(self, functions: Sequence[Callable[..., Any]], *, concurrent: bool | None = None):
        self._functions = {function.__name__: function for function in functions}
        self.tools = [declared_function(function) for function in functions]
        self.concurrent = not any(map(_may_hold_state, functions)) if concurrent is None else concurrent

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """What the function returns, as text; None is empty, and a list with an image stays a list of parts.

        Raises:
            ToolError: the function raised.
            InfrastructureError: it raised this itself: what it runs on has failed.
            UserError: it raised this itself: the run has to end.
        """
        try:
            result = self._functions[name](**arguments)
            if inspect.isawaitable(result):
                result = await result
        except (ToolError, InfrastructureError, UserError):
            raise
        except Exception as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error
        if isinstance(result, list) and any(map(is_image_part, result)):
            return result
        return "" if result is None else str(result)


def declared_function(function: Callable[..., Any]) -> dict[str, Any]:
    """A function as a tool in OpenAI's format.

    Args:
        function: its parameters are annotated as ``str``, ``int``, ``float``, ``bool``, ``None``, ``Any``, ``Literal``,
            ``list[...]``, ``dict[str, ...]`` or unions of those. The docstring's first paragraph describes it, and
            the section ``Args`` its parameters.

    Raises:
        UserError: a parameter has another annotation, or takes any number of arguments.
    """
    name, text = function.__name__, inspect.getdoc(function) or ""
    described, properties, required = _arguments_section(text), {}, []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UserError(f"the tool {name!r} has a parameter {parameter} that no JSON schema describes")
        if parameter.annotation is parameter.empty:
            raise UserError(f"the parameter {parameter.name!r} of the tool {name!r} has no type; annotate it")
        schema = _schema(parameter.annotation, f"the parameter {parameter.name!r} of the tool {name!r}")
        if parameter.name in described:
            schema["description"] = described[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    summary = " ".join(_SECTIONS.split(text)[0].split("\n\n")[0].split())
    return declared(name, summary, parameters_of(properties, required))


def _may_hold_state(function: Callable[..., Any]) -> bool:
    return inspect.ismethod(function) or bool(getattr(function, "__closure__", None))


def _schema(kind: Any, owner: str) -> dict[str, Any]:
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return {}
    if isinstance(kind, type) and kind in _TYPES:
        return {"type": _TYPES[kind]}
    if kind is None:
        return {"type": "null"}
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(part, owner) for part in parts]}
    if kind is list or origin is list:
        return {"type": "array", "items": _schema(parts[0], owner)} if parts else {"type": "array"}
    if kind is dict:
        return {"type": "object"}
    if origin is dict and parts[0] is str:
        return {"type": "object", "additionalProperties": _schema(parts[1], owner)}
    raise UserError(f"{owner} is annotated as {kind}, which no JSON schema describes")


def _arguments_section(text: str) -> dict[str, str]:
    """Descriptions of parameters in the section ``Args`` of a docstring."""
    begin = re.search(r"^Args:\n", text, re.MULTILINE)
    if begin is None:
        return {}
    body = _SECTIONS.split(text[begin.end() :])[0]
    entries = re.findall(r"^ {4}(\w+)(?: \([^)]*\))?: ((?:.|\n {5,})*)", body, re.MULTILINE)
    return {name: " ".join(description.split()) for name, description in entries}
