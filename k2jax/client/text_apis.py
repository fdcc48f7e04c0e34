"""The APIs that servers answer text by: a request in the fields of OpenAI's chat completions as the body of each.

``chat`` is that API itself, ``completions`` OpenAI's of plain text, ``responses`` OpenAI's, ``messages`` Anthropic's.
What an API does not know is left out of its bodies: responses and messages have no ``seed``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import json
from types import MappingProxyType
from typing import Any, NamedTuple

from k2jax.client.http import ServerFailedError, choices_of
from k2jax.errors import UserError

NATIVE = "native"
"""Field of an answer with its parts in the server's own form: they are sent back as they came, reasoning included."""
_STOPS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
_STOPS |= {"model_context_window_exceeded": "length"}
_SHARED = ("temperature", "top_p", "top_k", "stop")


class ChatReply(NamedTuple):
    """A whole message of a model, and what it took.

    Attributes:
        message: in OpenAI's format, with its calls of tools; with ``NATIVE`` where its API has another form.
        finish: finish reason, ``stop`` or ``length``; others as the server names them.
        prompt_tokens: of the request, as the server counts them; 0 where it does not say.
        tokens: of the message, reasoning included; 0 where the server does not say.
    """

    message: Mapping[str, Any]
    finish: str
    prompt_tokens: int
    tokens: int


class TextApi(NamedTuple):
    """One API.

    Attributes:
        path: below the server's URL.
        body: of a request, without the model's name, from the fields of one to chat completions.
        read: a reply from the object that a server answers with, and its URL.
        key_header: name of the header with the API key; empty is a bearer token.
        headers: of every request.
    """

    path: str
    body: Callable[[Mapping[str, Any]], dict[str, Any]]
    read: Callable[[Mapping[str, Any], str], ChatReply]
    key_header: str = ""
    headers: Mapping[str, str] = MappingProxyType({})


def _read_chat(answer: Mapping[str, Any], url: str) -> ChatReply:
    choices = choices_of(answer, url)
    message = choices[0].get("message") if choices else None
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or not isinstance(content, str | None):
        raise ServerFailedError(f"{url} answered without a message")
    finish = str(choices[0].get("finish_reason") or "stop")
    return ChatReply(message, finish, *_counts(answer, "prompt_tokens", "completion_tokens"))


def _completions_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of the messages as one text, as base models are asked."""
    if fields.get("tools"):
        raise UserError("completions of plain text have no tools; use --api=chat, responses or messages")
    texts = [message.get("content") or "" for message in fields["messages"]]
    if not all(isinstance(text, str) for text in texts):
        raise UserError("completions of plain text have no images; use --api=chat")
    return {"prompt": "\n\n".join(texts), **_taken(fields, "max_tokens", "seed", *_SHARED)}


def _read_completion(answer: Mapping[str, Any], url: str) -> ChatReply:
    choices = choices_of(answer, url)
    text = choices[0].get("text") if choices else None
    if not isinstance(text, str):
        raise ServerFailedError(f"{url} answered without a text")
    finish, counts = str(choices[0].get("finish_reason") or "stop"), ("prompt_tokens", "completion_tokens")
    return ChatReply({"role": "assistant", "content": text}, finish, *_counts(answer, *counts))


def _responses_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    items = [item for message in fields["messages"] for item in _input_items(message)]
    body = {"input": items, "max_output_tokens": fields["max_tokens"], "store": False} | _taken(fields, *_SHARED)
    if tools := [tool["function"] for tool in fields.get("tools") or ()]:
        body["tools"] = [{"type": "function", "strict": False, **function} for function in tools]
    return body


def _input_items(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The items of a message."""
    if NATIVE in message:
        yield from message[NATIVE]
    elif message["role"] == "tool":
        yield {
            "type": "function_call_output", "call_id": message["tool_call_id"], "output": message.get("content") or "",
        }  # fmt: skip
    else:
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = [_input_part(part) for part in content]
        if content or not message.get("tool_calls"):
            yield {"role": message["role"], "content": content}
        for call in message.get("tool_calls") or ():
            yield {"type": "function_call", "call_id": call["id"], **_taken(call["function"], "name", "arguments")}


def _input_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "image_url":
        return {"type": "input_image", "detail": "auto", "image_url": part["image_url"]["url"]}
    return {"type": "input_text", "text": part["text"]}


def _read_response(answer: Mapping[str, Any], url: str) -> ChatReply:
    items = _objects(answer.get("output"), f"{url} answered without output")
    if answer.get("status") not in ("completed", "incomplete"):
        raise ServerFailedError(f"{url} answered with the status {str(answer.get('status'))[:40]!r}")
    parts = [
        part
        for item in items
        if item.get("type") == "message"
        for part in _objects(item.get("content"), f"{url} answered with a message without content")
    ]
    text = "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)
    calls = [
        {"id": str(item.get("call_id")), "type": "function",
         "function": {name: str(item.get(name) or "") for name in ("name", "arguments")}}
        for item in items if item.get("type") == "function_call"
    ]  # fmt: skip
    finish = "length" if answer["status"] == "incomplete" else "tool_calls" if calls else "stop"
    # Nothing is stored at the server, so that its ids say nothing; reasoning goes back where it has a content.
    native = [
        {key: value for key, value in item.items() if key != "id"}
        for item in items
        if item.get("type") != "reasoning" or any(item.get(key) for key in ("summary", "content", "encrypted_content"))
    ]
    return _reply(text, calls, native, finish, _counts(answer, "input_tokens", "output_tokens"))


def _messages_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    system = [message["content"] for message in fields["messages"] if message["role"] == "system"]
    turns: list[dict[str, Any]] = []
    for message in fields["messages"]:
        if message["role"] == "system":
            continue
        role, blocks = "assistant" if message["role"] == "assistant" else "user", list(_blocks(message))
        if turns and turns[-1]["role"] == role:  # the results of several calls are one message
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    body = {"max_tokens": fields["max_tokens"], "messages": turns} | _taken(fields, "temperature", "top_p", "top_k")
    if "stop" in fields:
        body["stop_sequences"] = [fields["stop"]] if isinstance(fields["stop"], str) else fields["stop"]
    if tools := [tool["function"] for tool in fields.get("tools") or ()]:
        body["tools"] = [
            {**_taken(tool, "name", "description"), "input_schema": tool.get("parameters") or {"type": "object"}}
            for tool in tools
        ]
    return body | ({"system": "\n\n".join(system)} if system else {})


def _blocks(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The blocks of a message."""
    content = message.get("content") or ""
    if NATIVE in message:
        yield from message[NATIVE]
    elif message["role"] == "tool":
        text = content if isinstance(content, str) else json.dumps(content)
        yield {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": text}
    else:
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part["type"] == "image_url":
                yield {"type": "image", "source": _image_source(part["image_url"]["url"])}
            elif part["text"]:
                yield {"type": "text", "text": part["text"]}
        for call in message.get("tool_calls") or ():
            function = call["function"]
            yield {
                "type": "tool_use", "id": call["id"], "name": function["name"],
                "input": json.loads(function["arguments"] or "{}"),
            }  # fmt: skip


def _image_source(url: str) -> dict[str, Any]:
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    head, _, data = url.removeprefix("data:").partition(",")
    return {"type": "base64", "media_type": head.removesuffix(";base64"), "data": data}


def _read_message(answer: Mapping[str, Any], url: str) -> ChatReply:
    blocks = _objects(answer.get("content"), f"{url} answered without content")
    text = "".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text")
    calls = [
        {"id": str(block.get("id")), "type": "function",
         "function": {"name": str(block.get("name")), "arguments": json.dumps(block.get("input"), ensure_ascii=False)}}
        for block in blocks if block.get("type") == "tool_use"
    ]  # fmt: skip
    reason = str(answer.get("stop_reason") or "stop")
    counts = _counts(answer, "input_tokens", "output_tokens")
    for name in ("cache_read_input_tokens", "cache_creation_input_tokens"):  # which input_tokens leaves out
        counts = counts[0] + _counts(answer, name, name)[0], counts[1]
    native = [block for block in blocks if block.get("type") != "text" or block.get("text")]
    return _reply(text, calls, native, _STOPS.get(reason, reason), counts)


def _reply(
    text: str, calls: list[dict[str, Any]], native: Sequence[Any], finish: str, counts: tuple[int, int]
) -> ChatReply:
    message: dict[str, Any] = {"role": "assistant", "content": text, NATIVE: list(native)}
    return ChatReply(message | ({"tool_calls": calls} if calls else {}), finish, *counts)


def _taken(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}


def _objects(value: Any, failure: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ServerFailedError(failure)
    return value


def _counts(answer: Mapping[str, Any], read: str, written: str) -> tuple[int, int]:
    """Tokens that were read and written; 0 where the server does not say."""
    usage = answer.get("usage")
    counts = [usage.get(name) if isinstance(usage, Mapping) else None for name in (read, written)]
    first, second = (count if type(count) is int and count >= 0 else 0 for count in counts)
    return first, second


TEXT_APIS: Mapping[str, TextApi] = {
    "chat": TextApi("/v1/chat/completions", dict, _read_chat),
    "completions": TextApi("/v1/completions", _completions_body, _read_completion),
    "responses": TextApi("/v1/responses", _responses_body, _read_response),
    "messages": TextApi(
        "/v1/messages", _messages_body, _read_message, "x-api-key", {"anthropic-version": "2023-06-01"}
    ),
}
"""By the name that ``python -m k2jax.evaluate --api`` knows them by."""
