"""Fields of messages in OpenAI's format, read with errors in one line; every chat format renders from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
from typing import Any

from k2jax.errors import UserError, abbreviate
from k2jax.text.tokenizer import Tokenizer

Message = Mapping[str, Any]


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of a message's text; raises UserError for half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(
            f"a chat message contains an unpaired surrogate, which is not valid text: {abbreviate(text)}"
        ) from None
    return tokenizer.encode(text)


def content_text(message: Message) -> str:
    """The content as one text, empty for None; raises UserError where it is neither text nor text parts."""
    content = message.get("content")
    if content is None:
        return ""
    parts = [content] if isinstance(content, str) else content
    if isinstance(parts, list | tuple):
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
        if all(isinstance(text, str) for text in texts):
            return "".join(texts)
    raise UserError(f"a chat message's content must be text or a list of text parts, not {abbreviate(content)}")


def text_field(mapping: Mapping[str, Any], key: str, default: str) -> str:
    """An optional field that must be text."""
    value = mapping.get(key) or default
    if not isinstance(value, str):
        raise UserError(f"{key} of a chat message must be text, not {abbreviate(value)}")
    return value


def tool_calls(message: Message) -> Sequence[Mapping[str, Any]]:
    """The message's tool calls, often none; raises UserError where they are no list."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list | tuple):
        raise UserError(f"tool_calls of a chat message must be a list, not {abbreviate(calls)}")
    return calls


def function_of(call: Mapping[str, Any]) -> tuple[str, str]:
    """Name and arguments of a call; arguments that are not text are encoded as JSON."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UserError(f"a tool call needs a function with a name, not {abbreviate(call)}")
    arguments = function.get("arguments", {})
    return function["name"], arguments if isinstance(arguments, str) else to_json(arguments)


def to_json(value: Any, **options: Any) -> str:
    """JSON of a value in the characters of its strings; raises UserError where it is no JSON value."""
    try:
        return json.dumps(value, ensure_ascii=False, **options)
    except (TypeError, ValueError, RecursionError):
        raise UserError(f"tools and their arguments must be JSON values, not {abbreviate(value)}") from None
