"""Anthropic's messages through the official client, against an engine with scripted tokens."""

import json

import anthropic
import pytest

from tests.agents.api.sample import CALL_CONTENT, CALLS, NAME, TEXT, TOKENIZER, answer_ids
from tests.serve.fakes import FakeEngine, live

TOOLS = [{"name": "get_weather", "description": "w", "input_schema": {"type": "object", "properties": {}}}]
USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def client(server):
    return connect(server)


def connect(server, key="none"):
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=30)


def strictly(message):
    """The message, which must have no field that the client's types do not know."""
    assert not message.model_extra and not any(block.model_extra for block in message.content)
    return message


def ask(client, stream=False, **options):
    options = {"model": NAME, "max_tokens": 100, "messages": [USER]} | options
    if not stream:
        return strictly(client.messages.create(**options))
    with client.messages.stream(**options) as events:
        return strictly(events.get_final_message())


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_text(server, client, stream):
    answer = ask(client, stream, system=[{"type": "text", "text": "Be brief."}], metadata={"user_id": "u"})
    assert [block.text for block in answer.content] == [TEXT]
    assert (answer.stop_reason, answer.stop_sequence, answer.role) == ("end_turn", None, "assistant")
    prompt, _ = server.engine.asked[-1]
    assert TOKENIZER.decode(prompt) == "systemBe brief.userHiassistant"
    usage = answer.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == len(prompt)
    assert usage.output_tokens == len(answer_ids(TEXT))


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls(client, stream):
    answer = ask(client, stream, tools=TOOLS, tool_choice={"type": "auto"})
    text, *calls = answer.content
    assert text.text == CALL_CONTENT and answer.stop_reason == "tool_use"
    assert [(call.name, call.input) for call in calls] == [(name, json.loads(args)) for name, args in CALLS]
    assert [call.id for call in calls] == [f"functions.{name}:{i}" for i, (name, _) in enumerate(CALLS)]


@pytest.mark.parametrize("stream", [False, True])
def test_arguments_that_are_no_json_object_arrive_in_one(client, stream):
    answer = ask(client, stream, tools=TOOLS, messages=[{"role": "user", "content": "malformed"}])
    assert [call.input for call in answer.content] == [
        {"malformed_arguments": '{"a": 1e999}'},
        {"malformed_arguments": "[1]"},
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_the_ends_of_an_answer(client, stream):
    assert ask(client, stream, max_tokens=3).stop_reason == "max_tokens"
    stopped = ask(client, stream, stop_sequences=["fox", "zebra"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "fox")
    assert stopped.content[0].text == TEXT.partition("fox")[0]


def test_results_of_tools_are_messages_of_their_own(server, client):
    calls = [{"type": "tool_use", "id": f"functions.f:{i}", "name": "f", "input": {"i": i}} for i in (0, 1)]
    results = [
        {"type": "tool_result", "tool_use_id": "functions.f:0", "content": "zero"},
        {"type": "tool_result", "tool_use_id": "functions.f:1", "content": [{"type": "text", "text": "one"}]},
        {"type": "text", "text": "go on"},
    ]
    history = [USER, {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    ask(client, messages=history, tools=TOOLS[:0])
    decoded = TOKENIZER.decode(server.engine.asked[-1][0])
    assert decoded.endswith(
        'assistantfunctions.f:0{"i": 0}functions.f:1{"i": 1}tool## Return of functions.f:0\nzero'
        "tool## Return of functions.f:1\noneusergo onassistant"
    )


def test_tokens_of_a_prompt_are_counted(server, client):
    options = {"messages": [USER], "tools": TOOLS, "system": "Be brief."}
    counted = client.messages.count_tokens(model=NAME, **options).input_tokens
    ask(client, **options)
    assert counted == len(server.engine.asked[-1][0])


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_a_block_and_comes_back_into_the_prompt(thinking_server, stream):
    card, client = thinking_server.service.card, connect(thinking_server)
    thought, text = ask(client, stream, thinking={"type": "enabled", "budget_tokens": 1024}).content
    assert (thought.thinking, text.text) == ("hm", "Yes.")
    calls = {"type": "tool_use", "id": "functions.f:0", "name": "f", "input": {}}
    echo = [thought.model_dump(), calls]
    result = {"type": "tool_result", "tool_use_id": "functions.f:0", "content": "x"}
    ask(client, messages=[USER, {"role": "assistant", "content": echo}, {"role": "user", "content": [result]}])
    assert "<think>hm</think>" in "".join(map(card.token_text, thinking_server.engine.asked[-1][0]))
    ask(client, thinking={"type": "disabled"})
    assert thinking_server.engine.asked[-1][0][-1] == card.tokenizer.special_id("</think>")


def test_models_are_listed(client):
    [model] = client.models.list().data
    assert (model.id, model.type, model.max_input_tokens) == (NAME, "model", 256) and not model.model_extra
    assert client.models.retrieve(NAME).display_name == NAME


def test_errors_have_anthropics_format(client):
    with (
        live(FakeEngine(lambda request: [2]), TOKENIZER, vocab=TOKENIZER.vocab_size, keys=["sk-secret"]) as secret,
        pytest.raises(anthropic.AuthenticationError, match="a valid API key"),
    ):
        ask(connect(secret, "sk-other"))
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        ask(client, model="claude")
    for wrong in (
        {"messages": []},
        {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tool_choice": {"type": "any"}},
        {"extra_body": {"colour": "red"}},
        {"stop_sequences": [""]},
        {"thinking": {"type": "much"}},
    ):
        with pytest.raises(anthropic.BadRequestError) as error:
            ask(client, **wrong)
        assert error.value.body["type"] == "error" and error.value.body["error"]["type"] == "invalid_request_error"
