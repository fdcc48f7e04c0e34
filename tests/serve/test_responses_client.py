"""OpenAI's responses through the official client, against an engine with scripted tokens."""

import openai
import pytest

from tests.agents.api.sample import CALL_CONTENT, CALLS, NAME, TEXT, TOKENIZER, answer_ids

TOOLS = [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": False}]


@pytest.fixture(scope="module")
def client(server):
    return server.openai()


def strictly(response):
    assert not response.model_extra and not any(item.model_extra for item in response.output)
    return response


def ask(client, stream=False, **options):
    options = {"model": NAME, "input": "Hi", "store": False} | options
    if not stream:
        return strictly(client.responses.create(**options))
    numbers, items = [], {}
    with client.responses.stream(**options) as events:
        for event in events:
            numbers.append(event.sequence_number)
            if event.type == "response.output_item.done":
                items[event.output_index] = event.item.model_dump(exclude={"parsed", "parsed_arguments"})
        final = events.get_final_response()
    assert numbers == sorted(numbers)
    assert [items[i]["id"] for i in range(len(items))] == [item.id for item in final.output]
    return final


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_text(server, client, stream):
    answer = ask(client, stream, instructions="Be brief.", input=[{"role": "developer", "content": "Now."}])
    assert answer.output_text == TEXT and answer.incomplete_details is None
    prompt, _ = server.engine.asked[-1]
    assert TOKENIZER.decode(prompt) == "systemBe brief.systemNow.assistant"
    usage = answer.usage
    assert (usage.input_tokens, usage.output_tokens) == (len(prompt), len(answer_ids(TEXT)))
    assert usage.input_tokens_details.cached_tokens == len(prompt) // 2


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_and_their_way_back(server, client, stream):
    answer = ask(client, stream, tools=TOOLS, parallel_tool_calls=True)
    message, *calls = answer.output
    assert message.content[0].text == CALL_CONTENT
    assert [(call.name, call.arguments) for call in calls] == CALLS
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "ok"} for call in calls]
    echo = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]
    ask(client, stream, input=[{"role": "user", "content": "Hi"}, *echo, *results])
    called = "".join(f"functions.{name}:{i}{arguments}" for i, (name, arguments) in enumerate(CALLS))
    returned = "".join(f"tool## Return of {call.call_id}\nok" for call in calls)
    decoded = TOKENIZER.decode(server.engine.asked[-1][0])
    assert decoded.endswith(f"userHiassistant{CALL_CONTENT}{called}{returned}assistant")


def test_a_length_stop_leaves_the_response_incomplete(client):
    answer = ask(client, max_output_tokens=3)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    events = list(client.responses.create(model=NAME, input="Hi", max_output_tokens=3, stream=True))
    assert events[-1].type == "response.incomplete" and events[-1].response.usage.output_tokens == 3


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_an_item_and_comes_back_into_the_prompt(thinking_server, stream):
    card, client = thinking_server.service.card, thinking_server.openai()
    answer = ask(client, stream, reasoning={"effort": "medium"}, include=["reasoning.encrypted_content"])
    thought, text = answer.output
    assert (thought.summary[0].text, text.content[0].text) == ("hm", "Yes.")
    assert answer.usage.output_tokens_details.reasoning_tokens == len(card.tokenizer.encode("hm"))
    call = {"type": "function_call", "call_id": "functions.f:0", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "functions.f:0", "output": "x"}
    echo = [thought.model_dump(exclude_none=True), call, result]
    ask(client, input=[{"role": "user", "content": "Hi"}, *echo])
    assert "<think>hm</think>" in "".join(map(card.token_text, thinking_server.engine.asked[-1][0]))


def test_wrong_requests_are_refused(client):
    for param, wrong in (
        ("input", {"input": []}),
        ("input[0]", {"input": [{"type": "web_search_call"}]}),
        ("input[0]", {"input": [{"type": "function_call", "call_id": "x"}]}),
        ("input[0]", {"input": [{"role": "user", "content": [{"type": "input_file"}]}]}),
        ("tools", {"tools": [{"type": "web_search"}]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("previous_response_id", {"previous_response_id": "resp_1"}),
        ("text", {"text": {"format": {"type": "json_object"}}}),
        ("background", {"background": True}),
        ("colour", {"extra_body": {"colour": "red"}}),
        ("reasoning", {"extra_body": {"reasoning": 1}}),
    ):
        with pytest.raises(openai.BadRequestError) as error:
            ask(client, **wrong)
        assert error.value.param == param, wrong
