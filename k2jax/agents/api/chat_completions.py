"""The chat dialect: ``/v1/chat/completions`` in OpenAI's format, with tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, ClassVar

from k2jax.agents.api.answer_grammars import constrain, read_value
from k2jax.agents.api.api_error import bad_request, unsupported
from k2jax.agents.api.conversation import Conversation, has_name, read_shared, read_tools
from k2jax.agents.api.detokenize import Delta, ScoredToken, ToolCallDelta
from k2jax.agents.api.dialect import chat_dialect
from k2jax.agents.api.fields import Fields, invalid_value
from k2jax.agents.api.history_reading import read_history, thinks_after
from k2jax.agents.api.model_card import ModelCard
from k2jax.agents.api.once import Once
from k2jax.agents.api.requests import IGNORED, api_errors
from k2jax.agents.api.response_builder import ResponseBuilder, ResponseChoice, finite
from k2jax.client import MAX_TOP_LOGPROBS

_THINKING_NAMES = ("thinking", "enable_thinking")
_NEUTRAL: Mapping[str, Any] = {
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "audio": None,
    "prediction": None,
    "reasoning_effort": None,
    "verbosity": None,
    "web_search_options": None,
    "functions": None,
    "function_call": None,
}


def read_chat(body: Any, card: ModelCard, lenient: bool = False, once: Once | None = None) -> Conversation:
    """Reads the conversation in the body of a chat request; see ``ReadConversation``.

    Raises:
        ApiError: a field is wrong, unknown or not supported; the error names it.
    """
    with api_errors():
        fields = Fields(body, lenient=lenient)
        logprobs = fields.flag("logprobs")
        top_logprobs = fields.integer("top_logprobs", None, 0, MAX_TOP_LOGPROBS)
        if top_logprobs is not None and not logprobs:
            raise bad_request("top_logprobs", "top_logprobs needs logprobs: true")
        max_tokens, limit_field = (None, "") if lenient else _read_max_tokens(fields)
        options, asked = read_shared(fields, card, top_logprobs=top_logprobs or 0)
        messages, (tools, choice, left_out) = fields.take("messages"), read_tools(fields, "function", _declared)
        value = read_value(fields)
        thinking, is_asked, passed_over = _read_thinking(fields, card)
        continues = _read_continuation(fields)
        left_out += passed_over + fields.finish(IGNORED, _NEUTRAL)
        if not isinstance(messages, list) or not messages:
            raise invalid_value("messages", "a list with at least one message", messages)
        origins = tuple(f"messages[{index}]" for index in range(len(messages)))
        if not lenient and (origin := _with_old_call(messages, origins)):
            raise bad_request(origin, "function_call of a chat message is not supported by this server; use tool_calls")
        messages, unread = read_history(_continued(messages, continues), origins, fields, card, once)
        thinking = thinks_after(messages[-1], thinking, thinking and is_asked)
        options = dataclasses.replace(options, max_tokens=max_tokens, logprobs=logprobs, thinking=thinking)
        if not lenient:
            options = constrain(options, card, value, tools, choice, is_continued=bool(messages[-1].get("partial")))
        read = {"asked": asked, "left_out": left_out + unread, "limit_field": limit_field}
        return Conversation(messages, origins, tools, options, **read)


class ChatResponse(ResponseBuilder):
    """Builds the response to a chat request."""

    ID_PREFIX, OBJECT, CHUNK_OBJECT = "chatcmpl-", "chat.completion", "chat.completion.chunk"
    EMPTY_DELTA: ClassVar[dict[str, Any]] = {"delta": {}}
    PROMPT_IDS_IN_CHOICES = False

    def _message(self, choice: ResponseChoice) -> dict[str, Any]:
        text, calls = "".join(choice.texts), _join_calls(choice.calls)
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
        if reasoning := "".join(choice.reasoning):
            message["reasoning_content"] = reasoning
        return {"message": message | ({"tool_calls": calls} if calls else {})}

    def _message_delta(self, delta: Delta, is_first: bool) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": delta.text} if is_first else {}
        if delta.reasoning:
            message["reasoning_content"] = delta.reasoning
        if delta.text:
            message["content"] = delta.text
        if delta.calls:
            message["tool_calls"] = [_call_chunk(call) for call in delta.calls]
        return {"delta": message}

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        content = []
        for token in tokens:
            top = [self._token_entry(candidate, logprob) for candidate, logprob in token.top or ()]
            content.append(self._token_entry(token.id, token.logprob) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _token_entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        text, raw = self._card.token_text(token), self._card.token_bytes(token)
        return {"token": text, "logprob": finite(logprob), "bytes": list(raw)}


def _call_chunk(call: ToolCallDelta) -> dict[str, Any]:
    if call.id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def _join_calls(deltas: Sequence[ToolCallDelta]) -> list[dict[str, Any]]:
    """Complete tool calls: the first piece of a call has its id and name, every piece some of its arguments."""
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        if delta.id is not None:
            function = {"name": delta.name, "arguments": ""}
            calls.append({"id": delta.id, "type": "function", "function": function})
        calls[delta.index]["function"]["arguments"] += delta.arguments
    return calls


def _read_max_tokens(fields: Fields) -> tuple[int | None, str]:
    """The limit under its old name or its new one, and that name."""
    old, new = fields.integer("max_tokens", None, 1), fields.integer("max_completion_tokens", None, 1)
    if None not in (old, new) and old != new:
        raise bad_request("max_tokens", "max_tokens and max_completion_tokens disagree")
    return (old, "max_tokens") if new is None else (new, "max_completion_tokens")


def _declared(tool: dict[str, Any]) -> Mapping[str, Any] | None:
    return tool if has_name(tool.get("function")) else None


def _read_thinking(fields: Fields, card: ModelCard) -> tuple[bool, bool, tuple[str, ...]]:
    """Whether the answer begins with reasoning, whether the client says so, and what a lenient reader passed over.

    ``{"chat_template_kwargs": {"thinking": false}}`` turns the reasoning off; Qwen's name is ``enable_thinking``.
    """
    assert card.chat is not None
    options = fields.take("chat_template_kwargs", {})
    names = [name for name in _THINKING_NAMES if name in options] if isinstance(options, dict) else []
    others = isinstance(options, dict) and len(options) > len(names)
    passed_over = ("chat_template_kwargs",) if fields.lenient and others else ()
    is_read = isinstance(options, dict) and len(names) <= 1 and all(isinstance(options[name], bool) for name in names)
    if (others and not passed_over) or not is_read:
        text = "an object with the key thinking or enable_thinking alone, true or false"
        raise invalid_value("chat_template_kwargs", text, options)
    thinking = options[names[0]] if names else card.chat.thinks
    if thinking and not card.chat.thinks:
        raise unsupported("chat_template_kwargs", "this model's chat format has no reasoning")
    return thinking, bool(names), passed_over


def _read_continuation(fields: Fields) -> bool:
    """Whether the last message is to be continued, as vLLM's clients say it."""
    continues = fields.flag("continue_final_message")
    if fields.flag("add_generation_prompt", not continues) == continues:
        message = "continue_final_message: true needs add_generation_prompt: false, and neither goes without the other"
        raise bad_request("continue_final_message", message)
    return continues


def _with_old_call(messages: list[Any], origins: Sequence[str]) -> str | None:
    """Where a message has a call in the form before OpenAI's tools, whose declaration is not supported either."""
    old = (isinstance(message, dict) and message.get("function_call") is not None for message in messages)
    return next((origin for origin, is_old in zip(origins, old, strict=True) if is_old), None)


def _continued(messages: list[Any], continues: bool) -> list[Any]:
    """The messages, the last of which is marked where it is to be continued."""
    last = messages[-1]
    return [*messages[:-1], {**last, "partial": True}] if continues and isinstance(last, dict) else messages


DIALECT = chat_dialect("/v1/chat/completions", ChatResponse, read_chat)
