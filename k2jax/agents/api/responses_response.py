"""Responses and events of OpenAI's responses."""

from __future__ import annotations

import secrets
import time
from typing import Any

from k2jax.agents.api.api_error import ApiError
from k2jax.agents.api.content_blocks import AnswerBlock, AnswerBlocks, BlockChange
from k2jax.agents.api.detokenize import Delta
from k2jax.agents.api.dialect import PromptUsage
from k2jax.agents.api.encoding import NamedEvent
from k2jax.agents.api.model_card import ModelCard
from k2jax.agents.api.requests import GenerationRequest

_ID_PREFIXES = {"reasoning": "rs_", "text": "msg_", "call": "fc_"}


class ResponsesResponse:
    """Builds the response to a responses request; see ``DialectResponse``.

    Reasoning arrives as the summary of a reasoning item. Its ``encrypted_content`` is the name of the gateway's record,
    where there is one: clients send it back unread.
    """

    def __init__(self, request: GenerationRequest, card: ModelCard):
        self._request, self._card = request, card
        self._answer = AnswerBlocks()
        self._id = secrets.token_hex(12)
        self._created = int(time.time())
        self._events = 0

    def add(self, delta: Delta) -> None:
        """Adds a delta to a complete response."""
        self._answer.feed(delta)

    def body(self, usage: PromptUsage) -> dict[str, Any]:
        """Returns the body of a complete response."""
        incomplete = {"reason": "max_output_tokens"} if self._answer.finish == "length" else None
        return self._response("incomplete" if incomplete else "completed") | {
            "output": [self._item(block, done=True) for block in self._answer.blocks],
            "incomplete_details": incomplete,
            "usage": self._usage(usage),
        }

    def chunks(self, delta: Delta) -> list[dict[str, Any] | NamedEvent]:
        """Returns the events that a delta adds to a streamed response."""
        events: list[dict[str, Any] | NamedEvent] = []
        if not self._events:
            events.append(self._event("response.created", response=self._response("in_progress")))
            events.append(self._event("response.in_progress", response=self._response("in_progress")))
        return events + [event for change in self._answer.feed(delta) for event in self._change_events(change)]

    def closing_chunks(self, usage: PromptUsage) -> list[dict[str, Any] | NamedEvent | str]:
        """Returns the event that ends a stream, with the whole response."""
        body = self.body(usage)
        return [self._event(f"response.{body['status']}", response=body)]

    def _change_events(self, change: BlockChange) -> list[NamedEvent]:
        block, kind = change.block, change.block.kind
        if change.action == "open":
            item = self._item(block, done=False)
            added = [self._event("response.output_item.added", output_index=block.index, item=item)]
            return added if kind == "call" else [*added, self._part_event(block, "added")]
        name, place = self._delta_name(block)
        if change.action == "extend":
            return [self._event(f"{name}.delta", **place, delta=change.text)]
        text = {"arguments": block.text} if kind == "call" else {"text": block.text}
        done = [self._event(f"{name}.done", **place, **text)]
        if kind != "call":
            done.append(self._part_event(block, "done"))
        item = self._item(block, done=True)
        return [*done, self._event("response.output_item.done", output_index=block.index, item=item)]

    def _delta_name(self, block: AnswerBlock) -> tuple[str, dict[str, Any]]:
        """The name of a block's deltas, and the fields that say where they belong."""
        place: dict[str, Any] = {"item_id": self._item_id(block), "output_index": block.index}
        if block.kind == "call":
            return "response.function_call_arguments", place
        if block.kind == "reasoning":
            return "response.reasoning_summary_text", place | {"summary_index": 0}
        return "response.output_text", place | {"content_index": 0, "logprobs": []}

    def _part_event(self, block: AnswerBlock, step: str) -> NamedEvent:
        text = block.text if step == "done" else ""
        place: dict[str, Any] = {"item_id": self._item_id(block), "output_index": block.index}
        if block.kind == "reasoning":
            part = {"type": "summary_text", "text": text}
            return self._event(f"response.reasoning_summary_part.{step}", **place, summary_index=0, part=part)
        return self._event(f"response.content_part.{step}", **place, content_index=0, part=_text_part(text))

    def _item(self, block: AnswerBlock, done: bool) -> dict[str, Any]:
        """An output item: empty when it is opened, whole when it is closed."""
        text, status = (block.text, "completed") if done else ("", "in_progress")
        head = {"id": self._item_id(block), "status": status}
        if block.kind == "call":
            return head | {"type": "function_call", "call_id": block.id, "name": block.name, "arguments": text}
        if block.kind == "reasoning":
            summary = [{"type": "summary_text", "text": text}] if done else []
            return head | {"type": "reasoning", "summary": summary, "encrypted_content": self._request.record or None}
        return head | {"type": "message", "role": "assistant", "content": [_text_part(text)] if done else []}

    def _item_id(self, block: AnswerBlock) -> str:
        return f"{_ID_PREFIXES[block.kind]}{self._id}_{block.index}"

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self._card.name,
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
        }

    def _usage(self, usage: PromptUsage) -> dict[str, Any]:
        return {
            "input_tokens": usage.tokens,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": self._answer.tokens,
            "output_tokens_details": {"reasoning_tokens": self._answer.reasoning_tokens},
            "total_tokens": usage.tokens + self._answer.tokens,
        }

    def _event(self, name: str, **fields: Any) -> NamedEvent:
        self._events += 1
        return NamedEvent(name, {"type": name, "sequence_number": self._events - 1, **fields})


def error_event(error: ApiError) -> NamedEvent:
    """The last event of a stream that fails; its number is 0, for nobody knows how many came before."""
    data = {"type": "error", "code": error.code, "message": error.message, "param": error.param, "sequence_number": 0}
    return NamedEvent("error", data)


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
