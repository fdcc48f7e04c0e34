"""Anthropic's messages: bodies of ``/v1/messages`` and ``/v1/messages/count_tokens`` as conversations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any

from k2jax.agents.api.answer_grammars import ANY_TEXT, constrain, read_format
from k2jax.agents.api.anthropic_response import PING, MessagesResponse, error_event, messages_error
from k2jax.agents.api.api_error import bad_request, unsupported
from k2jax.agents.api.conversation import Conversation, flat_function, read_shared, read_tools, text_of_parts
from k2jax.agents.api.dialect import chat_dialect
from k2jax.agents.api.fields import Fields, invalid_value
from k2jax.agents.api.history_reading import read_history, thinks_after
from k2jax.agents.api.model_card import ModelCard
from k2jax.agents.api.once import Once
from k2jax.agents.api.requests import api_errors
from k2jax.errors import abbreviate
from k2jax.text.message_fields import check_names
from k2jax.text.messages import to_json

# Hints about prices, places and caches, and settings of features that these models do not have.
_IGNORED = frozenset({"metadata", "service_tier", "cache_control", "context_management", "inference_geo", "speed"})
_FIELDS: Mapping[str, tuple[str, ...]] = {
    # What a client sends back of an answer, beside its content, says nothing more about it.
    "message": ("role", "content", "id", "model", "stop_reason", "stop_sequence", "usage"),
    "text": ("text", "citations"),
    "image": ("source",),
    "thinking": ("thinking", "signature"),
    "tool_use": ("id", "name", "input", "caller"),
    "tool_result": ("tool_use_id", "content", "is_error"),
}
_BILLING = "x-anthropic-billing-header:"
"""Begins a system block of Claude Code that differs from call to call and is not for the model."""
_PARAGRAPH = "\n\n"
"""Separator of the text blocks of one message, which are texts of their own."""


def count_tokens(body: Any, card: ModelCard) -> dict[str, int]:
    """Returns the answer to a request of ``/v1/messages/count_tokens``: the tokens of its prompt.

    Raises:
        ApiError: as ``Dialect.parse``.
    """
    return {"input_tokens": len(DIALECT.parse(body, card).prompts[0])}


def read_messages(body: Any, card: ModelCard, lenient: bool = False, once: Once | None = None) -> Conversation:
    """Reads the conversation in the body of a messages request; see ``ReadConversation``.

    Raises:
        ApiError: a field is wrong, unknown or not supported; the error names it.
    """
    with api_errors():
        fields, once = Fields(body, lenient=lenient), once or Once()
        max_tokens = None if lenient else fields.integer("max_tokens", None, 1)
        options, asked = read_shared(fields, card, stop_field="stop_sequences")
        if options.n != 1:
            raise unsupported("n")
        thinking, is_asked = _read_thinking(fields, card)
        tools, choice, left_out = read_tools(fields, "custom", lambda tool: flat_function(tool, "input_schema"))
        system, listed = fields.take("system"), fields.take("messages")
        output = fields.take("output_config", {})
        if not isinstance(output, dict):
            raise invalid_value("output_config", "an object", output)
        value = ANY_TEXT if lenient else read_format(output.get("format"), "output_config.format")
        left_out += fields.finish(_IGNORED, {})
        if not isinstance(listed, list) or not listed:
            raise invalid_value("messages", "a list with at least one message", listed)
        messages, origins, passed = [], [], []
        if system := _read_system(system):
            messages, origins = [{"role": "system", "content": system}], ["system"]
        for index, (parts, names) in enumerate(once.each("parts", listed, lambda i: _parts(listed, i, lenient))):
            messages += parts
            origins += [f"messages[{index}]"] * len(parts)
            passed += names
        if messages[-1]["role"] == "assistant" and not (lenient and messages[-1].get("tool_calls")):
            messages[-1] = _prefill(messages[-1], origins[-1], lenient)
        read, unread = read_history(messages, origins, fields, card, once)
        thinking = thinks_after(read[-1], thinking, thinking and is_asked)
        options = dataclasses.replace(options, max_tokens=max_tokens, thinking=thinking)
        if not lenient:
            options = constrain(options, card, value, tools, choice, is_continued=bool(read[-1].get("partial")))
        left_out += unread + tuple(passed)
        return Conversation(read, tuple(origins), tools, options, asked=asked, left_out=left_out)


def _read_thinking(fields: Fields, card: ModelCard) -> tuple[bool, bool]:
    """Whether the answer begins with reasoning: where the model can and the client does not turn it off.

    The second value says whether the client turns it on itself.
    """
    assert card.chat is not None
    value = fields.take("thinking", {})
    if not isinstance(value, dict) or value.get("type", "adaptive") not in ("enabled", "disabled", "adaptive"):
        raise invalid_value("thinking", "an object of the type enabled, adaptive or disabled", value)
    return card.chat.thinks and value.get("type") != "disabled", value.get("type") == "enabled"


def _parts(messages: list[Any], index: int, lenient: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """The messages that one of Anthropic's stands for, and what a lenient reader passed over."""
    passed: list[str] | None = [] if lenient else None
    _check_fields(messages[index], f"messages[{index}]", passed)
    return list(_read_message(messages[index], f"messages[{index}]")), passed or []


def _check_fields(message: Any, origin: str, passed: list[str] | None) -> None:
    """Passes over the fields of a message, or of a block, that nobody reads; None refuses them."""
    if not isinstance(message, dict):
        return
    kind = message.get("type", "message")
    known = _FIELDS.get(kind) if isinstance(kind, str) else None
    if known is not None:  # other blocks are refused where they are read, or say nothing
        check_names(message, {"type", "cache_control", *known}, origin, passed)
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        _check_fields(block, origin, passed)


def _prefill(message: dict[str, Any], origin: str, lenient: bool) -> dict[str, Any]:
    """A last message of the assistant, which the model continues; as at Anthropic, it does not end with white space."""
    if not lenient and message["content"] != message["content"].rstrip():
        raise bad_request(origin, f"{origin}, which the model continues, must not end with white space")
    return {**message, "partial": True}


def _read_system(system: Any) -> str:
    if isinstance(system, list):
        texts = [part.get("text") for part in system if isinstance(part, dict)]
        kept = [not (isinstance(text, str) and text.startswith(_BILLING)) for text in texts]
        if len(texts) == len(system):
            system = [part for part, keep in zip(system, kept, strict=True) if keep]
    return text_of_parts(system, ("text",), "system", _PARAGRAPH)


def _read_message(message: Any, origin: str) -> Iterator[dict[str, Any]]:
    """The messages that a message of Anthropic's stands for: results of tools are messages of their own."""
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("user", "assistant", "system"):
        raise invalid_value(origin, "a message of the user, the assistant or the system", message)
    content = message.get("content")
    if isinstance(content, str) or content is None:
        yield {"role": role, "content": content or ""}
    elif not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise invalid_value(origin, "a message whose content is text or a list of blocks", message)
    elif role == "assistant":
        yield _read_answer(content, origin)
    else:
        yield from _read_blocks(content, role, origin)


def _read_blocks(blocks: list[dict[str, Any]], role: str, origin: str) -> Iterator[dict[str, Any]]:
    pending: list[dict[str, Any]] = []  # parts of text or images that belong to one message
    for block in blocks:
        if block.get("type") == "tool_result":
            if pending:
                yield {"role": role, "content": _joined(pending)}
            pending = []
            yield _read_result(block, origin)
        else:
            pending.append(_read_part(block, origin))
    if pending or not blocks:
        yield {"role": role, "content": _joined(pending)}


def _read_part(block: dict[str, Any], origin: str) -> dict[str, Any]:
    """A text or an image as a part of a message in OpenAI's format."""
    if block.get("type") == "text" and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    source = block.get("source")
    if block.get("type") == "image" and isinstance(source, dict):
        url = source.get("url")
        if source.get("type") == "base64":
            url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        if isinstance(url, str):
            return {"type": "image_url", "image_url": {"url": url}}
    kind = abbreviate(block.get("type"), 60)
    raise bad_request(origin, f"{origin} has a block that this server does not read: {kind}")


def _joined(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Parts as one text; a list where images are among them."""
    if all(part["type"] == "text" for part in parts):
        return _PARAGRAPH.join(part["text"] for part in parts)
    return parts


def _read_result(block: dict[str, Any], origin: str) -> dict[str, Any]:
    call, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(call, str):
        raise invalid_value(origin, "results with a tool_use_id", block)
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        content = _joined([_read_part(part, origin) for part in content])
    elif content is not None and not isinstance(content, str):
        raise invalid_value(origin, "results that are text or a list of blocks", block)
    result = {"role": "tool", "tool_call_id": call, "content": content or ""}
    return result | ({"is_error": True} if block.get("is_error") else {})


def _read_answer(blocks: list[dict[str, Any]], origin: str) -> dict[str, Any]:
    """An assistant's message; blocks of redacted thinking say nothing that this model has written."""
    texts, thoughts, calls = [], [], []
    for block in blocks:
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind == "tool_use" and isinstance(block.get("name"), str) and isinstance(block.get("id"), str):
            function = {"name": block["name"], "arguments": to_json(block.get("input", {}))}
            calls.append({"id": block["id"], "type": "function", "function": function})
        elif kind != "redacted_thinking":
            raise bad_request(origin, f"{origin} has a block that this server does not read: {abbreviate(kind, 60)}")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


DIALECT = chat_dialect(
    "/v1/messages",
    MessagesResponse,
    read_messages,
    error_body=messages_error,
    error_event=error_event,
    keep_alive=PING,
)
