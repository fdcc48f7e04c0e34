"""Tool loops of the official clients through the gateway: one path, sampled ids, and the end of a budget."""

import json

import anthropic
import openai
import pytest

from k2jax.trajectory import verify
from tests.agents.gateway.live import live_gateway
from tests.agents.gateway.scripted import SCHEMA, TOKENIZER, reply_ids

STEPS = [
    reply_ids("Look first. ", "I list the files.\n", [("functions.bash:0", '{"cmd" :  "ls"}')]),
    reply_ids("", "", [("functions.bash:1", '{"cmd": "cat 月", "n": 1.0}'), ("functions.bash:2", '{"cmd": "pwd"}')]),
    reply_ids("Enough.", "Done: 月.", []),
]


def reply(prompt, sampling):
    """The next step of the script: results of tools are counted."""
    results = TOKENIZER.decode(prompt).count("## Return of ")
    return STEPS[{0: 0, 1: 1, 3: 2}[results]]


@pytest.fixture(scope="module")
def server():
    with live_gateway(reply) as running:
        yield running


def openai_client(server, access):
    return openai.OpenAI(base_url=f"{server.url}{access.path}/v1", api_key=access.key, max_retries=0, timeout=30)


def anthropic_client(server, access):
    return anthropic.Anthropic(base_url=f"{server.url}{access.path}", api_key=access.key, max_retries=0, timeout=30)


def chat_loop(server, access, stream):
    client, ended = openai_client(server, access), None
    tools = [{"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Go"}]
    while ended is None:
        options = {"model": "any", "messages": messages, "tools": tools, "temperature": 0, "seed": 1}
        if stream:
            with client.chat.completions.stream(**options) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**options).choices[0].message
        echo = message.model_dump(exclude_none=True, exclude={"parsed"})
        for call in echo.get("tool_calls", ()):
            call["function"].pop("parsed_arguments", None)
        messages.append(echo)
        for call in message.tool_calls or ():
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "ok"})
        ended = None if message.tool_calls else message.content
    return ended


def responses_loop(server, access, stream):
    client, items = openai_client(server, access), [{"role": "user", "content": "Go"}]
    tools = [{"type": "function", "name": "bash", "parameters": SCHEMA, "strict": False}, {"type": "web_search"}]
    while True:
        options = {"model": "any", "instructions": "Be brief.", "input": items, "tools": tools, "store": False}
        if stream:
            with client.responses.stream(**options) as events:
                response = events.get_final_response()
        else:
            response = client.responses.create(**options)
        exclude = {"parsed_arguments", "status"}
        items += [item.model_dump(exclude_none=True, exclude=exclude) for item in response.output]
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output_text
        items += [{"type": "function_call_output", "call_id": call.call_id, "output": "ok"} for call in calls]


def messages_loop(server, access, stream):
    client, messages = anthropic_client(server, access), [{"role": "user", "content": "Go"}]
    tools = [{"name": "bash", "input_schema": SCHEMA}]
    while True:
        options = {"model": "any", "max_tokens": 7, "system": "Be brief.", "messages": messages, "tools": tools}
        if stream:
            with client.messages.stream(**options) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**options)
        messages.append({"role": "assistant", "content": [block.model_dump() for block in message.content]})
        calls = [block for block in message.content if block.type == "tool_use"]
        if message.stop_reason != "tool_use":
            return "".join(block.text for block in message.content if block.type == "text")
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "ok"} for call in calls]
        messages.append({"role": "user", "content": results})


LOOPS = {"chat": chat_loop, "responses": responses_loop, "messages": messages_loop}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", list(LOOPS))
def test_a_tool_loop_is_one_path_of_what_was_sampled(server, dialect, stream):
    access = server.open()
    assert LOOPS[dialect](server, access, stream) == "Done: 月."
    session = server.session(access)
    trajectory = session.main.trajectory
    assert verify(trajectory) == [] and len(trajectory.leaves()) == 1
    assert [node.tokens.tolist() for node in trajectory.nodes if node.turn >= 0] == STEPS
    assert session.counts()["extend"] == 2 and session.counts()["start"] == 1
    for prompt, sampling in server.bench.client.calls[-3:]:  # what the client asked for does not count
        assert (sampling.max_tokens, sampling.temperature, len(prompt) > 0) == (500, 1.0, True)
    assert server.close(access)["trajectories"] == 1
    with pytest.raises((openai.AuthenticationError, anthropic.AuthenticationError)):
        LOOPS[dialect](server, access, stream)


@pytest.mark.parametrize("budget", [{"tokens": len(STEPS[0]) + 4}, {"steps": 1}])
def test_a_budget_ends_with_the_dialect_s_own_length_stop(server, budget):
    access = server.open(budget=budget)
    messages = [{"role": "user", "content": "Go"}]
    tools = [{"name": "bash", "input_schema": SCHEMA}]
    client = anthropic_client(server, access)
    first = client.messages.create(model="any", max_tokens=9, messages=messages, tools=tools)
    assert first.stop_reason == "tool_use"
    if "tokens" in budget:  # four tokens are left
        cut = client.messages.create(model="any", max_tokens=9, messages=messages, tools=tools)
        assert cut.stop_reason == "max_tokens"
    chat = openai_client(server, access)
    empty = client.messages.create(model="any", max_tokens=9, messages=messages, tools=tools)
    assert (empty.stop_reason, empty.content) == ("max_tokens", [])
    with client.messages.stream(model="any", max_tokens=9, messages=messages, tools=tools) as events:
        assert events.get_final_message().stop_reason == "max_tokens"
    function = [{"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}]
    choice = chat.chat.completions.create(model="any", messages=messages, tools=function).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("length", "")
    chunks = list(chat.chat.completions.create(model="any", messages=messages, tools=function, stream=True))
    assert chunks[-1].choices[0].finish_reason == "length"
    response = chat.responses.create(model="any", input="Go", tools=[{"type": "function", "name": "bash"}])
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    session = server.session(access)
    expected = len(STEPS[0]) + 4 * ("tokens" in budget)
    assert session.main.trajectory.sampled_tokens == session.sampled_tokens == expected
    assert sum(request.get("over_budget", False) for request in session.requests) == 5


def test_models_and_token_counts(server):
    access = server.open()
    client = anthropic_client(server, access)
    assert [model.id for model in client.models.list()] == ["k2"]
    assert openai_client(server, access).models.retrieve("k2").id == "k2"
    messages = [{"role": "user", "content": "Go"}]
    counted = client.messages.count_tokens(model="any", messages=messages).input_tokens
    client.messages.create(model="any", max_tokens=9, messages=messages)
    assert counted == len(server.bench.client.calls[-1][0])


def test_what_a_client_asked_for_is_recorded(server):
    access = server.open()
    messages = [{"role": "user", "content": "Go"}]
    options = {"temperature": 0.25, "max_tokens": 3, "extra_body": {"reasoning_effort": "low"}}
    openai_client(server, access).chat.completions.create(model="gpt", messages=messages, **options)
    [request] = server.session(access).requests
    assert request["asked"] == {"temperature": 0.25, "max_tokens": 3, "reasoning_effort": "low"}
    assert json.loads(json.dumps(request)) == request and request["kind"] == "side call"
