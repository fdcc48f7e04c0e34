"""OpenAI's responses: bodies of ``/v1/responses`` as conversations. Nothing is stored between requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from k2jax.agents.api.answer_grammars import ANY_TEXT, TextRule, constrain, read_format
from k2jax.agents.api.api_error import bad_request, unsupported
from k2jax.agents.api.conversation import Conversation, flat_function, read_shared, read_tools
from k2jax.agents.api.dialect import chat_dialect
from k2jax.agents.api.fields import Fields, invalid_value
from k2jax.agents.api.history_reading import read_history, thinks_after
from k2jax.agents.api.model_card import ModelCard
from k2jax.agents.api.once import Once
from k2jax.agents.api.requests import IGNORED, api_errors
from k2jax.agents.api.responses_response import ResponsesResponse, error_event
from k2jax.errors import abbreviate
from k2jax.text.message_fields import check_names

# What cannot change an answer: places, prices, caches, and what a response is to hold beside it.
_IGNORED = IGNORED | {"prompt_cache_retention", "include", "client_metadata", "truncation"}
_NEUTRAL: Mapping[str, Any] = {
    **{"top_logprobs": 0, "background": False},
    "parallel_tool_calls": True,
    **{"previous_response_id": None, "conversation": None, "prompt": None, "max_tool_calls": None},
}
_TEXT_PARTS = ("input_text", "output_text", "text", "refusal")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "message": ("type", "id", "status", "role", "content", "phase", "partial", "prefix"),
    "reasoning": ("type", "id", "status", "summary", "content", "encrypted_content"),
    "function_call": ("type", "id", "status", "call_id", "name", "arguments", "namespace"),
    **dict.fromkeys(_OUTPUTS, ("type", "id", "status", "call_id", "output", "name")),
}


def read_response(body: Any, card: ModelCard, lenient: bool = False, once: Once | None = None) -> Conversation:
    """Reads the conversation in the body of a responses request; see ``ReadConversation``.

    Raises:
        ApiError: a field is wrong, unknown or not supported; the error names it.
    """
    with api_errors():
        fields, once = Fields(body, lenient=lenient), once or Once()
        max_tokens = None if lenient else fields.integer("max_output_tokens", None, 1)
        options, asked = read_shared(fields, card)
        if options.n != 1:
            raise unsupported("n")
        for name in ("previous_response_id", "conversation"):
            if fields.take(name) is not None:  # also of agents: the history would be lost
                raise unsupported(name, f"this server stores no responses; send the history as input, not {name}")
        value, thinking = _read_text(fields), _read_thinking(fields, card)
        tools, choice, left_out = read_tools(fields, "function", lambda tool: flat_function(tool, "parameters"))
        instructions, listed = fields.text("instructions", ""), fields.take("input")
        left_out += fields.finish(_IGNORED, _NEUTRAL)
        reader = _InputReader([] if lenient else None)
        if instructions:
            reader.add({"role": "system", "content": instructions}, "instructions")
        reader.read(listed)
        messages, unread = read_history(reader.joined(once), reader.origins, fields, card, once)
        thinking = thinks_after(messages[-1], thinking, False)
        options = dataclasses.replace(options, max_tokens=max_tokens, thinking=thinking)
        if not lenient:
            options = constrain(options, card, value, tools, choice, is_continued=bool(messages[-1].get("partial")))
        read = {"asked": asked, "left_out": left_out + unread + tuple(reader.passed or ())}
        return Conversation(messages, tuple(reader.origins), tools, options, **read, limit_field="max_output_tokens")


def _read_text(fields: Fields) -> TextRule:
    """The format of the answer's text, over which a lenient reader passes; how verbose it is to be is a hint."""
    text = fields.take("text", {})
    if not isinstance(text, dict):
        raise invalid_value("text", "an object", text)
    return ANY_TEXT if fields.lenient else read_format(text.get("format"), "text.format")


def _read_thinking(fields: Fields, card: ModelCard) -> bool:
    """Whether the answer begins with reasoning: where the model can, unless the effort is to be none."""
    assert card.chat is not None
    value = fields.take("reasoning", {})
    if not isinstance(value, dict):
        raise invalid_value("reasoning", "an object", value)
    return card.chat.thinks and value.get("effort") != "none"


class _InputReader:
    """Folds input items into messages: the items of one answer become one message of the assistant."""

    def __init__(self, passed: list[str] | None):
        """Starts without messages; ``passed`` receives the fields that nobody reads, and None refuses them."""
        self.passed = passed
        self.messages: list[dict[str, Any]] = []
        self.origins: list[str] = []
        self._last: list[Any] = []  # of the items of each message: the same one has the same items before it

    def add(self, message: dict[str, Any], origin: str) -> None:
        """Adds a message."""
        self.messages.append(message)
        self.origins.append(origin)
        self._last.append(message)

    def joined(self, once: Once) -> list[dict[str, Any]]:
        """The messages, the same ones where they are made of the same items."""
        return once.each("joined", self._last, self.messages.__getitem__)

    def read(self, listed: Any) -> None:
        """Reads the input: text, or a list of items."""
        if isinstance(listed, str):
            self.add({"role": "user", "content": listed}, "input")
            return
        if not isinstance(listed, list) or not listed:
            raise invalid_value("input", "text or a list with at least one item", listed)
        readers: dict[str, Callable[[dict[str, Any], str], None]] = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._call,
            **dict.fromkeys(_OUTPUTS, self._output),
        }
        for index, item in enumerate(listed):
            origin = f"input[{index}]"
            kind = item.get("type") or "message" if isinstance(item, dict) else None
            read = readers.get(kind) if isinstance(kind, str) else None
            if read is None:
                raise bad_request(origin, f"{origin} is an item that this server does not read: {abbreviate(kind, 60)}")
            check_names(item, _FIELDS[kind], origin, self.passed)
            read(item, origin)
            self._last[-1] = item

    def _message(self, item: dict[str, Any], origin: str) -> None:
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise invalid_value(origin, "a message with a role", item)
        content = _content(item.get("content"), origin)
        if role != "assistant":
            self.add({"role": "system" if role == "developer" else role, "content": content}, origin)
            return
        answer = self._answer(origin)
        if answer["content"] and not answer.get("tool_calls"):  # an answer has its text in one item, or around calls
            answer = self._new_answer(origin)
        if not isinstance(content, str):
            raise bad_request(origin, f"{origin} of the assistant has images, which this server does not read")
        answer["content"] += content
        answer |= {name: item[name] for name in ("partial", "prefix") if name in item}

    def _reasoning(self, item: dict[str, Any], origin: str) -> None:
        parts = item.get("summary") or item.get("content") or []
        valid = isinstance(parts, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in parts)
        if not valid:
            raise invalid_value(origin, "reasoning with a list of texts", item)
        answer = self._answer(origin)
        if answer["content"] or answer.get("tool_calls"):
            answer = self._new_answer(origin)
        if parts:
            answer["reasoning_content"] = answer.get("reasoning_content", "") + "".join(part["text"] for part in parts)

    def _call(self, item: dict[str, Any], origin: str) -> None:
        names = [item.get(key) for key in ("call_id", "name", "arguments")]
        if not all(isinstance(name, str) for name in names):
            raise invalid_value(origin, "a call with call_id, name and arguments", item)
        call_id, name, arguments = names
        function = {"name": name, "arguments": arguments}
        calls = self._answer(origin).setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})

    def _output(self, item: dict[str, Any], origin: str) -> None:
        call_id = item.get("call_id")
        if not isinstance(call_id, str):
            raise invalid_value(origin, "a result with a call_id", item)
        self.add({"role": "tool", "tool_call_id": call_id, "content": _content(item.get("output"), origin)}, origin)

    def _answer(self, origin: str) -> dict[str, Any]:
        """The assistant's message that the next item belongs to."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            return self.messages[-1]
        return self._new_answer(origin)

    def _new_answer(self, origin: str) -> dict[str, Any]:
        self.add({"role": "assistant", "content": ""}, origin)
        return self.messages[-1]


def _content(content: Any, origin: str) -> str | list[dict[str, Any]]:
    """Content as one text, or as parts in OpenAI's chat format where images are among them."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise bad_request(origin, f"{origin} must have content that is text or a list of parts")
    parts = [_part(part, origin) for part in content]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: dict[str, Any], origin: str) -> dict[str, Any]:
    kind = part.get("type")
    text = part.get("refusal" if kind == "refusal" else "text")
    if kind in _TEXT_PARTS and isinstance(text, str):
        return {"type": "text", "text": text}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    raise bad_request(origin, f"{origin} has a part that this server does not read: {abbreviate(kind, 60)}")


DIALECT = chat_dialect("/v1/responses", ResponsesResponse, read_response, error_event=error_event, history="input")
