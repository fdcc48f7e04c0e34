"""Fields of messages in OpenAI's format, read with errors in one line; every chat format renders from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import json
from typing import Any

from k2jax.errors import UserError, abbreviate
from k2jax.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
THINK_BEGIN, THINK_END = "<think>", "</think>"


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of a message's text; raises UserError for half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(
            f"a chat message contains an unpaired surrogate, which is not valid text: {abbreviate(text)}"
        ) from None
    return tokenizer.encode(text)


def with_parts(messages: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
    """The messages with every part of their content, or their text, changed by a function; no message is checked."""
    changed = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list | tuple):
            message = {**message, "content": [change(part) for part in content]}
        elif isinstance(content, str):
            message = {**message, "content": change(content)}
        changed.append(message)
    return changed


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


def split_reasoning(message: Message) -> tuple[str, str]:
    """An assistant's reasoning and its text: of ``reasoning_content``, of parts, or inline before ``</think>``.

    Raises:
        UserError: the content, or a part of it, is no text.
    """
    reasoning, content = message.get("reasoning_content"), message.get("content")
    if isinstance(content, list | tuple):
        thoughts, others = [], []
        for part in content:
            is_thought = isinstance(part, Mapping) and part.get("type") == "thinking"
            (thoughts if is_thought else others).append(part)
        text = content_text({"content": others})
        inline = content_text({"content": [part.get("thinking") for part in thoughts]})
    else:
        text = content_text(message)
        inline, end, after = text.partition(THINK_END) if reasoning is None else ("", "", "")
        if end:
            text = after.lstrip("\n")
            inline = inline.partition(THINK_BEGIN)[2] if THINK_BEGIN in inline else inline
        else:
            inline = ""
    return (inline, text) if reasoning is None else (text_field(message, "reasoning_content", ""), text)


def without_old_reasoning(messages: Sequence[Any]) -> list[Any]:
    """A conversation as a thinking model reads it: without the reasoning of tool cycles that have ended.

    A cycle ends with an answer that calls no tool; the reasoning of those up to the last such answer is dropped.

    Raises:
        UserError: the content of a message is no text.
    """
    ends = [i for i, message in enumerate(messages) if _is_of_assistant(message) and not message.get("tool_calls")]
    last = ends[-1] if ends else -1
    return [
        {**message, "content": split_reasoning(message)[1], "reasoning_content": ""}
        if index <= last and _is_of_assistant(message)
        else message
        for index, message in enumerate(messages)
    ]


def _is_of_assistant(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "assistant"


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
