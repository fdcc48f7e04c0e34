"""Responses, events and errors of Anthropic's messages."""

from __future__ import annotations

import datetime
import secrets
from typing import Any

from k2jax.agents.api.api_error import ApiError
from k2jax.agents.api.content_blocks import AnswerBlock, AnswerBlocks, BlockChange
from k2jax.agents.api.conversation import arguments_object
from k2jax.agents.api.detokenize import Delta
from k2jax.agents.api.dialect import PromptUsage
from k2jax.agents.api.encoding import NamedEvent, dump_json, encode_event
from k2jax.agents.api.model_card import ModelCard
from k2jax.agents.api.requests import GenerationRequest

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}

PING = encode_event(NamedEvent("ping", {"type": "ping"}))
"""The event with which Anthropic keeps a stream alive, before its first event or after any."""


class MessagesResponse:
    """Builds the response to a messages request; see ``DialectResponse``.

    The arguments of a call are sent when they are complete, because clients parse them: arguments that are not a JSON
    object arrive in one under ``malformed_arguments``.
    """

    def __init__(self, request: GenerationRequest, card: ModelCard):
        self._request, self._card = request, card
        self._answer = AnswerBlocks()
        self._id = "msg_" + secrets.token_hex(12)
        self._started = False

    def add(self, delta: Delta) -> None:
        """Adds a delta to a complete response."""
        self._answer.feed(delta)

    def body(self, usage: PromptUsage) -> dict[str, Any]:
        """Returns the body of a complete response."""
        content = [self._content_block(block) for block in self._answer.blocks]
        return self._message(content, self._input_usage(usage) | {"output_tokens": self._answer.tokens}) | self._ending

    def chunks(self, delta: Delta) -> list[dict[str, Any] | NamedEvent]:
        """Returns the events that a delta adds to a streamed response."""
        changes = self._answer.feed(delta)
        events: list[dict[str, Any] | NamedEvent] = []
        if not self._started:
            self._started = True
            # How much of the prompt was cached is known at the end, where ``message_delta`` says it.
            usage = self._input_usage(PromptUsage(len(self._request.prompts[0]), 0)) | {"output_tokens": 0}
            empty = {"stop_reason": None, "stop_sequence": None}
            events.append(_event("message_start", message=self._message([], usage) | empty))
        return events + [event for change in changes for event in self._block_events(change)]

    def closing_chunks(self, usage: PromptUsage) -> list[dict[str, Any] | NamedEvent | str]:
        """Returns the events that end a stream."""
        counts = self._input_usage(usage) | {"output_tokens": self._answer.tokens}
        return [_event("message_delta", delta=self._ending, usage=counts), _event("message_stop")]

    def _block_events(self, change: BlockChange) -> list[NamedEvent]:
        block, index = change.block, change.block.index
        if change.action == "open":
            return [_event("content_block_start", index=index, content_block=self._empty_block(block))]
        deltas = []
        if change.action == "extend" and block.kind != "call":
            name = "thinking" if block.kind == "reasoning" else "text"
            deltas.append({"type": f"{name}_delta", name: change.text})
        elif change.action == "close" and block.kind == "call":
            arguments = dump_json(arguments_object(block.text)).decode()
            deltas.append({"type": "input_json_delta", "partial_json": arguments})
        elif change.action == "close" and block.kind == "reasoning":
            deltas.append({"type": "signature_delta", "signature": self._request.record})
        events = [_event("content_block_delta", index=index, delta=delta) for delta in deltas]
        return [*events, _event("content_block_stop", index=index)] if change.action == "close" else events

    def _empty_block(self, block: AnswerBlock) -> dict[str, Any]:
        if block.kind == "call":
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}
        if block.kind == "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "text", "text": ""}

    def _content_block(self, block: AnswerBlock) -> dict[str, Any]:
        if block.kind == "call":
            return self._empty_block(block) | {"input": arguments_object(block.text)}
        if block.kind == "reasoning":
            return {"type": "thinking", "thinking": block.text, "signature": self._request.record}
        return {"type": "text", "text": block.text}

    def _message(self, content: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._card.name}
        return head | {"content": content, "usage": usage}

    @property
    def _ending(self) -> dict[str, Any]:
        reason = "stop_sequence" if self._answer.stop else _STOP_REASONS[self._answer.finish or "stop"]
        return {"stop_reason": reason, "stop_sequence": self._answer.stop}

    def _input_usage(self, usage: PromptUsage) -> dict[str, int]:
        return {
            "input_tokens": usage.tokens - usage.cached,
            "cache_read_input_tokens": usage.cached,
            "cache_creation_input_tokens": 0,
        }


def messages_error(error: ApiError) -> dict[str, Any]:
    """The body of an error response in Anthropic's format; a wrong field is named in its message."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = f"{error.param}: {error.message}" if error.param else error.message
    return {"type": "error", "error": {"type": kind, "message": message}}


def error_event(error: ApiError) -> NamedEvent:
    """The last event of a stream that fails."""
    return NamedEvent("error", messages_error(error))


def model_list(card: ModelCard) -> dict[str, Any]:
    """The answer to ``GET /v1/models`` in Anthropic's format."""
    return {"data": [model_info(card)], "has_more": False, "first_id": card.name, "last_id": card.name}


def model_info(card: ModelCard) -> dict[str, Any]:
    """The answer to ``GET /v1/models/NAME`` in Anthropic's format."""
    created = datetime.datetime.fromtimestamp(card.created, datetime.UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": card.name,
        "display_name": card.name,
        "created_at": created,
        "lifecycle": "active",
        "max_input_tokens": card.max_length,
    }


def _event(name: str, **fields: Any) -> NamedEvent:
    return NamedEvent(name, {"type": name, **fields})
