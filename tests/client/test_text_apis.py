"""The APIs by text: bodies of requests beside the official clients' own types, and replies of the published forms."""

import asyncio
import json

import anthropic.types
import httpx
import openai.types
import openai.types.responses.response_create_params as response_params
from pydantic import TypeAdapter
import pytest

from k2jax.client import ChatEndpoint, PromptTooLongError, ServerFailedError, http
from k2jax.client.text_apis import NATIVE, TEXT_APIS
from k2jax.errors import UserError

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
FIELDS = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Sum?"}, PICTURE]},
        {"role": "assistant", "content": "Hm.", "tool_calls": [CALL, CALL | {"id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "tool", "tool_call_id": "c2", "content": "3"},
    ],
    "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["END"], "tools": [TOOL],
}  # fmt: skip
USAGE = {"input_tokens": 9, "output_tokens": 4}


def test_messages_have_anthropics_form():
    body = TEXT_APIS["messages"].body(FIELDS)
    user, answer, results = body["messages"]
    assert body["system"] == "Be brief." and body["stop_sequences"] == ["END"] and "seed" not in body
    assert user["content"][1] == {
        "type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
    }  # fmt: skip
    assert answer["content"][1] == {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
    assert [block["tool_use_id"] for block in results["content"]] == ["c1", "c2"] and results["role"] == "user"
    assert body["tools"] == [{"name": "add", "description": "Adds.", "input_schema": SCHEMA}]
    for name in ("temperature", "top_p"):  # which servers read, and the client of today's own models does not have
        del body[name]
    official(anthropic.types.message_create_params.MessageCreateParamsNonStreaming, {"model": "m", **body})


def test_responses_have_openais_form():
    body = TEXT_APIS["responses"].body(FIELDS | {"stop": "END"})
    del body["stop"]  # which OpenAI's own server does not know
    assert body["max_output_tokens"] == 7 and body["store"] is False and "seed" not in body
    kinds = [item.get("type", item.get("role")) for item in body["input"]]
    assert kinds == ["system", "user", "assistant", *["function_call"] * 2, *["function_call_output"] * 2]
    assert body["input"][1]["content"][1]["type"] == "input_image"
    assert body["input"][3] == {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
    assert body["tools"] == [{"type": "function", "strict": False, **TOOL["function"]}]
    official(response_params.ResponseCreateParamsNonStreaming, {"model": "m", **body})


def test_completions_are_of_one_text_without_tools():
    body = TEXT_APIS["completions"].body(
        {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "max_tokens": 1, "seed": 2}
    )
    assert body == {"prompt": "a\n\nb", "max_tokens": 1, "seed": 2}
    official(openai.types.completion_create_params.CompletionCreateParamsNonStreaming, {"model": "m", **body})
    with pytest.raises(UserError, match="have no tools"):
        TEXT_APIS["completions"].body(FIELDS)


def official(kind, body):
    """The body as the official client's types read it, which refuse what they do not know."""
    read = TypeAdapter(kind).validate_python(body)
    assert read.keys() == body.keys()


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
ITEM = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"}
ANSWERS = {
    "chat": {"choices": [{"message": {"role": "assistant", "content": "2"}, "finish_reason": "length"}]},
    "completions": {"choices": [{"text": "2", "finish_reason": "length"}]},
    "responses": {
        "status": "incomplete", "usage": USAGE,
        "output": [ITEM, ITEM | {"encrypted_content": None},
                   {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "2"}]}],
    },
    "messages": {
        "content": [THOUGHT, {"type": "text", "text": "2"}], "stop_reason": "max_tokens",
        "usage": USAGE | {"input_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 1},
    },
}  # fmt: skip


@pytest.mark.parametrize("api", TEXT_APIS)
def test_an_answer_is_its_text_its_end_and_its_tokens(api):
    reply = TEXT_APIS[api].read(ANSWERS[api], "http://x")
    assert (reply.message["content"], reply.finish) == ("2", "length")
    assert reply[2:] == ((9, 4) if "usage" in ANSWERS[api] else (0, 0))


def test_reasoning_goes_back_as_it_came_where_a_server_can_read_it():
    for api, first, key in (("messages", THOUGHT, "messages"), ("responses", ITEM, "input")):
        message = TEXT_APIS[api].read(ANSWERS[api], "http://x").message
        body = TEXT_APIS[api].body({"messages": [{"role": "user", "content": "1+1"}, message], "max_tokens": 1})
        sent = body[key][1]["content"] if api == "messages" else body[key][1:]
        assert sent == message[NATIVE] and len(sent) == 2
        assert sent[0] == {name: value for name, value in first.items() if name != "id"}
        assert all("id" not in part for part in sent)


CALLED = {
    "responses": {"status": "completed", "output": [
        {"type": "function_call", "id": "fc", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}]},
    "messages": {"content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}],
                 "stop_reason": "tool_use"},
}  # fmt: skip


@pytest.mark.parametrize("api", CALLED)
def test_calls_come_in_the_form_of_chat_completions(api):
    reply = TEXT_APIS[api].read(CALLED[api], "http://x")
    assert reply.message["tool_calls"] == [CALL] and reply.finish == "tool_calls"


@pytest.mark.parametrize(
    ("api", "answer"),
    [
        ("completions", {"choices": [{"text": None}]}),
        ("responses", {"status": "completed", "output": ["text"]}),
        ("responses", {"status": "failed", "output": []}),
        ("responses", {"status": "completed", "output": [{"type": "message", "content": "text"}]}),
        ("messages", {"content": "text"}),
    ],
)
def test_what_is_no_answer_is_a_failure_of_the_server(api, answer):
    with pytest.raises(ServerFailedError, match="http://x answered with"):
        TEXT_APIS[api].read(answer, "http://x")


def ask(answer, api="messages", more=None, **options):
    """The reply to a request, and the request."""
    requests = []

    def serve(request):
        requests.append(request)
        return answer

    async def run():
        async with ChatEndpoint("http://x", "m", api=api, attempts=1, **options) as endpoint:
            headers = endpoint._http.headers
            endpoint._http = httpx.AsyncClient(
                base_url="http://x", headers=headers, transport=httpx.MockTransport(serve)
            )
            return await endpoint.reply({"messages": [{"role": "user", "content": "?"}], "max_tokens": 3}, more or {})

    return asyncio.run(run()), requests[0]


def test_each_api_has_its_key_and_path_and_fields_of_its_own_can_be_left_out():
    _, request = ask(httpx.Response(200, json=ANSWERS["messages"]), more={"max_tokens": None, "extra": 1}, api_key="k")
    assert request.url.path == "/v1/messages" and request.headers["x-api-key"] == "k"
    assert "authorization" not in request.headers and request.headers["anthropic-version"] == "2023-06-01"
    body = json.loads(request.content)
    assert body["extra"] == 1 and "max_tokens" not in body


def test_neither_a_key_nor_an_endless_answer_comes_back(monkeypatch):
    refused = httpx.Response(401, json={"error": {"message": "no such key: sk-123 " + "x" * 5000}})
    with pytest.raises(UserError) as raised:
        ask(refused, api_key="sk-123")
    assert "sk-123" not in str(raised.value) and "***" in str(raised.value) and len(str(raised.value)) < 1100
    monkeypatch.setattr(http, "LARGEST_ANSWER", 100)
    with pytest.raises(ServerFailedError, match="answered with more than 100 bytes"):
        ask(httpx.Response(200, json={"content": "x" * 200}))
    long = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}}
    with pytest.raises(PromptTooLongError):
        ask(httpx.Response(400, json=long))
