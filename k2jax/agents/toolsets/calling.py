"""Calls of tools as a model writes them: found, read and validated; what is wrong becomes a message to the model."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
import functools
import json
from typing import Any, NamedTuple

from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.toolsets.types import ToolError, Toolset, is_image_part
from k2jax.errors import InfrastructureError, UserError, abbreviate, nearest
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.text.media_reading import IMAGE_PART

RESULT_LIMIT = 20_000
"""Characters of a result that the model sees; of a longer one, the beginning and the end."""


class CallResult(NamedTuple):
    """What a model sees of a call.

    Attributes:
        content: the result, text or parts of a message's content, or why there is none.
        is_error: whether there is none.
    """

    content: str | list[dict[str, Any]]
    is_error: bool = False


class Toolbox:
    """The tools of several toolsets, which are all open.

    Raises:
        UserError: two tools have one name, or a tool's parameters are no JSON schema.

    Attributes:
        tools: all declarations, in the order of the toolsets.
    """

    def __init__(self, toolsets: Sequence[Toolset]):
        self.tools = [tool for toolset in toolsets for tool in toolset.tools]
        self._owners: dict[str, Toolset] = {}
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for toolset in toolsets:
            for tool in toolset.tools:
                name, schema = tool["function"]["name"], tool["function"].get("parameters") or {"type": "object"}
                if name in self._owners:
                    raise UserError(f"two toolsets have a tool {name!r}; leave one of them out")
                _check_schema(name, schema)
                self._owners[name], self._schemas[name] = toolset, schema

    async def call(self, call: Mapping[str, Any]) -> CallResult:
        """Carries out a call in OpenAI's format; whatever the model wrote, there is a result.

        Raises:
            InfrastructureError: what the tool runs on has failed.
        """
        try:
            name, arguments = self._read(call)
            return CallResult(checked_result(await self._owners[name].call(name, arguments)))
        except ToolError as error:
            return CallResult(shortened(f"Error: {error}"), is_error=True)
        except (InfrastructureError, UserError):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise EnvironmentFailedError(f"the tool of {abbreviate(call)} broke down: {reason}") from error

    def queue(self, call: Mapping[str, Any]) -> Hashable | None:
        """What a call shares with others, which are then carried out in order; None where it may overlap with all."""
        owner = self._owners.get(_name(call))
        if owner is None or owner.concurrent:
            return None
        return "sandbox" if owner.needs_sandbox else id(owner)

    def _read(self, call: Mapping[str, Any]) -> tuple[str, Any]:
        """Name and valid arguments of a call; raises ToolError where it has none."""
        function, name = call.get("function") or {}, _name(call)
        if name not in self._owners:
            raise ToolError(f"there is no tool {abbreviate(name)}{nearest(name, list(self._owners))}")
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            arguments = _parsed(arguments)
        schema = self._schemas[name]
        if isinstance(arguments, str):
            arguments = positional(arguments, schema)
        _validate(name, arguments, schema)
        return name, arguments


def _name(call: Mapping[str, Any]) -> str:
    return str((call.get("function") or {}).get("name"))


def checked_result(result: Any) -> str | list[dict[str, Any]]:
    """What a tool returned, as content of a message: its texts are shortened together, its images stay whole.

    Raises:
        TypeError: it is neither text nor a list of parts with text and images in data URLs.
    """
    if isinstance(result, str):
        return shortened(result)
    parts, left = [], RESULT_LIMIT
    for part in result if isinstance(result, list | tuple) and result else [result]:
        if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
            parts.append({"type": "text", "text": shortened(part["text"], max(0, left))})
            left -= len(part["text"])
        elif is_image_part(part):
            parts.append({"type": IMAGE_PART, IMAGE_PART: {"url": part[IMAGE_PART]["url"]}})
        else:
            raise TypeError(
                f"its result has {abbreviate(part)}; return text, or a list of parts of the types text and image_url, "
                "with images in data URLs"
            )
    return parts


def positional(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments without names, separated by spaces, in the order of the schema's properties; the last takes the rest.

    Numbers and booleans are read where the property's type asks for them.
    """
    properties = schema.get("properties") or {}
    words = text.split(" ", max(0, len(properties) - 1)) if text else []
    if len(words) > len(properties):
        raise ToolError("this tool has no arguments")
    return {name: _value(word, properties[name]) for name, word in zip(properties, words, strict=False)}


def _value(word: str, schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind in ("integer", "number", "boolean"):
        try:
            return parse_bounded_json(word)
        except ValueError:
            return word  # the schema refuses it with a message
    return word


def shortened(text: str, limit: int = RESULT_LIMIT) -> str:
    """A text of at most about ``limit`` characters: its beginning and its end where it is longer.

    Half surrogate pairs, which no tokenizer encodes, become question marks.
    """
    text = text.encode(errors="replace").decode()
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[len(text) - half :]}"


def _parsed(text: str) -> Any:
    try:
        return parse_bounded_json(text or "{}")
    except ValueError as error:
        raise ToolError(f"the arguments are not JSON ({abbreviate(str(error))})") from None


def _validate(name: str, arguments: Any, schema: Mapping[str, Any]) -> None:
    from jsonschema.exceptions import best_match

    if not isinstance(arguments, Mapping):
        raise ToolError(f"the arguments of {name} must be a JSON object, not {abbreviate(arguments)}")
    try:
        error = best_match(_validator(json.dumps(schema, sort_keys=True)).iter_errors(arguments))
    except RecursionError:
        raise ToolError(f"the arguments of {name} are nested too deep") from None
    if error is not None:
        place = "".join(f"[{part!r}]" for part in error.absolute_path)
        raise ToolError(f"the arguments{place} of {name} are wrong: {shortened(error.message, 400)}")


def _check_schema(name: str, schema: Mapping[str, Any]) -> None:
    mistake = _mistake(json.dumps(schema, sort_keys=True))
    if mistake:
        raise UserError(f"the parameters of the tool {name!r} are no JSON schema: {abbreviate(mistake)}")


@functools.lru_cache(maxsize=512)
def _mistake(schema: str) -> str:
    """Why a text is no JSON schema, or nothing; every episode has the same few, and a check takes a millisecond."""
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError
    except ImportError:
        raise UserError("tools need the package jsonschema: pip install 'k2jax[env]'") from None
    try:
        Draft202012Validator.check_schema(json.loads(schema))
    except SchemaError as error:
        return error.message
    return ""


@functools.lru_cache(maxsize=512)
def _validator(schema: str) -> Any:
    """Validates under a schema; a reference to another document is never fetched."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    return Draft202012Validator(json.loads(schema), registry=Registry())
