"""Fields of messages in OpenAI's format, read with errors in one line; every chat format renders from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import json
import re
from typing import Any

from k2jax.errors import UserError, abbreviate
from k2jax.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
THINK_BEGIN, THINK_END = "<think>", "</think>"
NOT_JSON = "tools and their arguments must be JSON values, not {}"
EMPTY_ARGUMENTS = "{}"
"""Arguments of a call that has none, or blank ones."""


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


TEXT_PARTS: Mapping[str | None, str] = {
    **dict.fromkeys((None, "text", "input_text", "output_text"), "text"),
    "refusal": "refusal",
}
"""Types of parts of content that are text, and the key of it; a part that has no type holds a text alone."""
REASONING_PARTS = ("thinking", "reasoning", "redacted_thinking")
"""Types of parts of content that are reasoning."""
_INLINE_REASONING = re.compile(rf"\s*{THINK_BEGIN}(.*?){THINK_END}\n*", re.DOTALL)


def part_text(part: Any) -> str | None:
    """The text of a part of content; None where it is none."""
    if not isinstance(part, Mapping):
        return part if isinstance(part, str) else None
    kind = part.get("type")
    if not (kind is None or isinstance(kind, str)) or kind not in TEXT_PARTS:
        return None
    if kind is None and any(value is not None for key, value in part.items() if key != "text"):
        return None
    text = part.get(TEXT_PARTS[kind])
    return text if isinstance(text, str) else None


def thought_of(part: Any) -> str | None:
    """The text of a part of reasoning, of whatever dialect; None where it is none, as where it is encrypted."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or part.get("type") == "redacted_thinking":
        return None
    stated = [part[key] for key in ("thinking", "reasoning", "text", "summary") if part.get(key) is not None]
    if len(stated) != 1 or not isinstance(stated[0], str | list):
        return None
    texts = [stated[0]] if isinstance(stated[0], str) else [part_text(item) for item in stated[0]]
    return None if None in texts else "".join(text for text in texts if text is not None)


def content_text(message: Message) -> str:
    """The content as one text, empty for None; raises UserError where it is neither text nor text parts."""
    content = message.get("content")
    if content is None:
        return ""
    parts = [content] if isinstance(content, str) else content
    if isinstance(parts, list | tuple):
        texts = [part_text(part) for part in parts]
        if None not in texts:
            return "".join(text for text in texts if text is not None)
    raise UserError(f"a chat message's content must be text or a list of text parts, not {abbreviate(content)}")


def stated_reasoning(message: Message) -> str | None:
    """An assistant's reasoning beside its text: ``reasoning_content``, or parts of content; None where it states none.

    Raises:
        UserError: it is no text.
    """
    if message.get("reasoning_content") is not None:
        return text_field(message, "reasoning_content", "")
    content = message.get("content")
    parts = [part for part in content if _is_thought(part)] if isinstance(content, list | tuple) else []
    thoughts = [thought_of(part) for part in parts]
    if None in thoughts:
        raise UserError(f"a chat message has reasoning that is no text: {abbreviate(parts)}")
    return "".join(thought for thought in thoughts if thought is not None) if parts else None


def split_reasoning(message: Message) -> tuple[str, str]:
    """An assistant's reasoning and its text.

    Where the message does not state its reasoning beside the text, ``<think>…</think>`` that begins the text is it. The
    tags are text everywhere else.

    Raises:
        UserError: the content, or a part of it, is no text.
    """
    content, reasoning = message.get("content"), stated_reasoning(message)
    if isinstance(content, list | tuple):
        content = [part for part in content if not _is_thought(part)]
    text = content_text({"content": content})
    inline = _INLINE_REASONING.match(text) if reasoning is None else None
    return (inline[1], text[inline.end() :]) if inline else (reasoning or "", text)


def _is_thought(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in REASONING_PARTS


def ends_cycle(message: Message) -> bool:
    """Whether a message ends a cycle of calls: an answer that calls no tool and that the model does not continue."""
    return message["role"] == "assistant" and not message.get("tool_calls") and not message.get("partial")


def without_reasoning(message: Message) -> Message:
    """A message, an assistant's without its reasoning.

    Raises:
        UserError: its content is no text.
    """
    if message["role"] != "assistant":
        return message
    return {**message, "content": split_reasoning(message)[1], "reasoning_content": ""}


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
    """Name and arguments of a call; arguments that are not text are encoded as JSON, and none at all are ``{}``."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UserError(f"a tool call needs a function with a name, not {abbreviate(call)}")
    arguments = function.get("arguments")
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return function["name"], EMPTY_ARGUMENTS
    return function["name"], arguments if isinstance(arguments, str) else to_json(arguments)


def to_json(value: Any, **options: Any) -> str:
    """JSON of a value in the characters of its strings; raises UserError where it is no JSON value."""
    try:
        return json.dumps(value, ensure_ascii=False, **options)
    except (TypeError, ValueError, RecursionError):
        raise UserError(NOT_JSON.format(abbreviate(value))) from None
