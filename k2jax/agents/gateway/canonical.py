"""Keys under which messages are equal by value, however a client writes them.

Content that is text equals a list of one part with that text. Arguments of calls are equal as JSON: clients parse and
write them again. Numbers are equal as JavaScript sees them. The id of a call, its name, texts and thoughts are equal
only if they are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import hashlib
import json
from typing import Any

from k2jax.agents.api.conversation import arguments_object
from k2jax.errors import UserError
from k2jax.text.media_reading import IMAGE_PART, VIDEO_PART
from k2jax.text.messages import content_text, function_of, split_reasoning, text_field, tool_calls

_KEY_BYTES = 16
_ENCODER = json.JSONEncoder(sort_keys=True)


def message_key(message: Mapping[str, Any]) -> str:
    """Returns the key of a message in OpenAI's chat format.

    Raises:
        UserError: it is malformed.
    """
    role = message.get("role")
    if role == "assistant":
        reasoning, text, calls = answer_parts(message)
        return _digest(["assistant", reasoning, text, calls])
    labels = [text_field(message, name, "") for name in ("name", "tool_call_id")]
    return _digest([role, _content(message), *labels, *(["error"] if message.get("is_error") is True else [])])


def tools_key(tools: Sequence[Mapping[str, Any]]) -> str:
    """Returns the key of declared tools, which are equal only as they are written."""
    return _digest(["tools", list(tools)])


def answer_parts(message: Mapping[str, Any]) -> tuple[str, str, list[list[Any]]]:
    """Returns an assistant's reasoning, text, and calls as id, name and arguments.

    Raises:
        UserError: the message is malformed.
    """
    stated = {name: value for name, value in message.items() if name != "reasoning_content" or value}
    reasoning, text = split_reasoning(stated)
    calls = []
    for call in tool_calls(message):
        name, arguments = function_of(call)
        calls.append([text_field(call, "id", ""), name, _normalize(arguments_object(arguments))])
    return reasoning, text, calls


def plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message with the fields that are rendered and no others, its calls' arguments as text.

    Raises:
        UserError: it is malformed.
    """
    plain: dict[str, Any] = {"role": message.get("role"), "content": _content(message)}
    names = ("reasoning_content", "name", "tool_call_id")
    plain |= {name: text for name in names if (text := text_field(message, name, ""))}
    plain |= {"is_error": True} if message.get("is_error") is True else {}
    calls = []
    for call in tool_calls(message):
        name, arguments = function_of(call)
        label = {"id": call_id} if (call_id := text_field(call, "id", "")) else {}
        calls.append({**label, "type": "function", "function": {"name": name, "arguments": arguments}})
    return plain | ({"tool_calls": calls} if calls else {})


def _content(message: Mapping[str, Any]) -> Any:
    """Content as text; as parts where some are images or videos, which the chat format may refuse."""
    try:
        return content_text(message)
    except UserError:
        parts = message.get("content")
        types = [part.get("type") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        if not any(kind in (IMAGE_PART, VIDEO_PART) for kind in types):
            raise
        return parts


def _normalize(value: Any) -> Any:
    """A JSON value with numbers as JavaScript reads them, which does not tell 1 from 1.0."""
    if isinstance(value, dict):
        return {key: _normalize(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_normalize(item) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return repr(float(value) + 0.0)  # -0.0 is 0
        except OverflowError:
            return "Infinity"
    return ["text", value] if isinstance(value, str) else value


def _digest(value: Any) -> str:
    return hashlib.blake2b(_ENCODER.encode(value).encode(), digest_size=_KEY_BYTES).hexdigest()
