"""Every feature through the official client, against an engine with scripted tokens."""

import json

import openai
import pytest

from tests.agents.api.sample import CALLING, NAME, TEXT, TOKENIZER, TOOLS, answer_ids, special
from tests.serve.fakes import FakeEngine, live


def script(request):
    """Tool calls for a prompt that declares tools; otherwise text, another one for a later seed."""
    if "get_weather" in TOKENIZER.decode(request.prompt):
        return CALLING
    return answer_ids(TEXT if request.sampling.seed < 100 else f"seed {request.sampling.seed}")


@pytest.fixture(scope="module")
def server():
    with live(FakeEngine(script), TOKENIZER, vocab=TOKENIZER.vocab_size) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return server.openai()


def chat(client, **options):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    return client.chat.completions.create(**{"model": NAME, "messages": messages, "seed": 1} | options)


def complete(client, **options):
    return client.completions.create(**{"model": NAME, "prompt": "a", "seed": 1, "max_tokens": 100} | options)


def asked(server):
    return server.engine.asked[-1]


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME


def test_a_chat_answer(server, client):
    answer = chat(client)
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert choice.message.tool_calls is None and choice.logprobs is None
    prompt, sampling = asked(server)
    assert TOKENIZER.decode(prompt) == "systemBe brief.userHiassistant"
    assert set(sampling.stop_tokens) == {special("<|im_end|>"), TOKENIZER.eos}
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), len(answer_ids(TEXT)))
    assert usage.total_tokens == len(prompt) + len(answer_ids(TEXT))
    assert usage.prompt_tokens_details.cached_tokens == len(prompt) // 2


def test_a_chat_without_limit_may_fill_the_sequence(server, client):
    chat(client)
    prompt, sampling = asked(server)
    assert sampling.max_tokens == 256 - len(prompt)
    chat(client, max_completion_tokens=256 - len(prompt))
    assert asked(server)[1].max_tokens == 256 - len(prompt)
    with pytest.raises(openai.BadRequestError, match=f"{10**9} by max_completion_tokens") as caught:
        chat(client, max_completion_tokens=10**9)
    assert caught.value.code == "context_length_exceeded"


def test_a_streamed_chat_is_the_same_answer(client):
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == TEXT
    assert not any("\ufffd" in (chunk.choices[0].delta.content or "") for chunk in chunks[:-1])
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == [] and chunks[-1].usage == chat(client).usage
    assert all(chunk.usage is None for chunk in chunks[:-1]) and len({chunk.id for chunk in chunks}) == 1
    assert len(chunks) > 10 and {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_a_stream_tells_its_usage_only_when_asked(client):
    assert all(chunk.choices and chunk.usage is None for chunk in chat(client, stream=True))


def test_tool_calls(server, client):
    [choice] = chat(client, tools=TOOLS).choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look."
    calls = [(call.id, call.type, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [
        ("functions.get_weather:0", "function", "get_weather", '{"city": "北京"}'),
        ("functions.search:1", "function", "search", '{"q": 1}'),
    ]
    assert TOKENIZER.decode(asked(server)[0]).startswith('tool_declare[{"function"')


def test_streamed_tool_calls(client):
    content, names, arguments = "", {}, {}
    for chunk in chat(client, tools=TOOLS, stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for call in delta.tool_calls or []:
            if call.id:
                names[call.index] = (call.id, call.type, call.function.name)
            arguments[call.index] = arguments.get(call.index, "") + call.function.arguments
    assert content == "Let me look." and chunk.choices[0].finish_reason == "tool_calls"
    assert names[1] == ("functions.search:1", "function", "search")
    assert arguments == {0: '{"city": "北京"}', 1: '{"q": 1}'}


def test_a_conversation_with_tool_results(server, client):
    call = {"id": "functions.get_weather:0", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "rain"},
    ]
    chat(client, messages=messages, tools=TOOLS, tool_choice="auto")
    text = TOKENIZER.decode(asked(server)[0])
    assert "systemBe brief." in text and f"## Return of {call['id']}\nrain" in text


def test_tools_that_must_not_be_called_are_not_declared(server, client):
    [choice] = chat(client, tools=TOOLS, tool_choice="none").choices
    assert choice.message.content == TEXT
    assert "get_weather" not in TOKENIZER.decode(asked(server)[0])


def test_several_choices_have_seeds_of_their_own(server, client):
    answer = chat(client, n=3, seed=200)
    assert [choice.message.content for choice in answer.choices] == ["seed 200", "seed 201", "seed 202"]
    assert answer.usage.prompt_tokens == len(asked(server)[0])  # once for all choices
    streamed = {}
    for chunk in chat(client, n=3, seed=2**32 - 1 + 201, stream=True):
        choice = chunk.choices[0]
        streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
    assert streamed == {0: "seed 200", 1: "seed 201", 2: "seed 202"}


def test_sampling_parameters_arrive(server, client):
    options = {"temperature": 0.5, "top_p": 0.25, "extra_body": {"top_k": 7, "min_p": 0.125}}
    for create in (chat, complete):
        create(client, **options, max_tokens=3, seed=9)
        sampling = asked(server)[1]
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.25, 7, 0.125)
        assert (sampling.max_tokens, sampling.seed) == (3, 9)
    seeds = set()
    for _ in range(3):
        chat(client, seed=None)
        seeds.add(asked(server)[1].seed)
    assert len(seeds) == 3
    chat(client, extra_body={"top_k": -1})
    assert asked(server)[1].top_k == 0
    chat(client, extra_body={"top_k": 10**18})  # what does not fit the engine's integers keeps its meaning
    assert asked(server)[1].top_k == TOKENIZER.vocab_size


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_text_and_the_work(server, client, stream):
    before = server.engine.generated
    answer = chat(client, stop=["brown fox", "never"], stream=stream)
    if stream:
        chunks = list(answer)
        text, reason = "".join(c.choices[0].delta.content or "" for c in chunks), chunks[-1].choices[0].finish_reason
    else:
        text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert (text, reason) == ("The quick ", "stop")
    server.wait_until_idle()
    needed = next(n for n in range(99) if "brown fox" in TOKENIZER.decode(answer_ids(TEXT)[:n]))
    assert server.engine.generated - before == needed


def test_a_stop_string_that_never_comes_hides_nothing(client):
    assert chat(client, stop="end!").choices[0].message.content == TEXT


def test_length_is_a_reason(client):
    assert chat(client, max_tokens=2).choices[0].finish_reason == "length"


def test_chat_logprobs(client):
    [choice] = chat(client, logprobs=True, top_logprobs=2).choices
    content = choice.logprobs.content
    assert len(content) == len(answer_ids(TEXT)) and content[-1].token == "<|im_end|>"
    assert b"".join(bytes(token.bytes) for token in content[:-1]).decode() == TEXT
    assert content[0].logprob == -0.25 and content[0].token == TOKENIZER.decode(answer_ids(TEXT)[:1])
    assert [[top.logprob for top in token.top_logprobs] for token in content] == [[-1.0, -2.0]] * len(content)
    streamed = []
    for chunk in chat(client, logprobs=True, top_logprobs=2, stream=True):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert streamed == content
    assert chat(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_completion_of_a_text(client):
    answer = complete(client, max_tokens=len(answer_ids(TEXT)) - 1)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (TEXT, "length")


def test_completions_end_at_the_end_of_the_document(server, client):
    complete(client)
    prompt, sampling = asked(server)
    assert list(prompt) == TOKENIZER.encode_document("a") and sampling.stop_tokens == (TOKENIZER.eos,)
    complete(client, extra_body={"add_special_tokens": False})
    assert list(asked(server)[0]) == TOKENIZER.encode("a")
    complete(client, extra_body={"ignore_eos": True, "stop_token_ids": [7]})
    assert asked(server)[1].stop_tokens == (7,)
    client.completions.create(model=NAME, prompt="a")
    assert asked(server)[1].max_tokens == 16


@pytest.mark.parametrize("prompt", [[5, 6, 7], [[5, 6, 7]], [[5, 6, 7], [8]], ["a", "b c"], "a"])
def test_prompts_of_every_kind(server, client, prompt):
    many = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    answer = complete(client, prompt=prompt, n=2, max_tokens=4, extra_body={"return_token_ids": True})
    expected = [TOKENIZER.encode_document(item) if isinstance(item, str) else item for item in many]
    assert [choice.index for choice in answer.choices] == list(range(2 * len(many)))
    assert [choice.prompt_token_ids for choice in answer.choices] == [ids for ids in expected for _ in range(2)]
    assert all(choice.token_ids == answer_ids(TEXT)[:4] for choice in answer.choices)
    assert answer.usage.prompt_tokens == sum(map(len, expected)) and answer.usage.completion_tokens == 8 * len(many)


def test_token_ids_of_a_chat(server, client):
    answer = chat(client, extra_body={"return_token_ids": True})
    assert answer.prompt_token_ids == list(asked(server)[0]) and answer.choices[0].token_ids == answer_ids(TEXT)
    chunks = list(chat(client, stream=True, extra_body={"return_token_ids": True}))
    assert chunks[0].prompt_token_ids == list(asked(server)[0])
    assert [i for chunk in chunks for i in getattr(chunk.choices[0], "token_ids", None) or []] == answer_ids(TEXT)
    assert not hasattr(chat(client).choices[0], "token_ids")


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs(server, client, stream):
    prompt = TOKENIZER.encode("月 a b")
    answer = complete(client, prompt=prompt, echo=True, logprobs=1, max_tokens=5, stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    text = "".join(choice.text for choice in choices)
    logprobs = {name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    for choice in choices:
        for name in logprobs:
            logprobs[name] += getattr(choice.logprobs, name) if choice.logprobs else []
    new = answer_ids(TEXT)[:5]
    assert text == TOKENIZER.decode([*prompt, *new])
    assert asked(server)[1].prompt_logprobs
    assert logprobs["token_logprobs"] == [None, *(-0.5 - i for i in range(len(prompt) - 1)), *[-0.25] * 5]
    first, *others = logprobs["top_logprobs"][: len(prompt)]
    assert first is None
    for i, (top, token) in enumerate(zip(others, logprobs["tokens"][1:], strict=False)):
        assert len(top) == 2 and top[token] == -0.5 - i
    assert all(
        top[token] == -0.25 and len(top) == 2
        for top, token in zip(logprobs["top_logprobs"][len(prompt) :], logprobs["tokens"][len(prompt) :], strict=True)
    )
    for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        assert token.startswith("bytes:") or text[offset:].startswith(token)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize(("logprob", "told"), [(float("nan"), "null"), (-float("inf"), "-9999.0")])
def test_log_probabilities_that_are_no_numbers_are_json_too(server, monkeypatch, path, stream, logprob, told):
    monkeypatch.setattr(server.engine, "logprob", logprob)
    asks = {"messages": [{"role": "user", "content": "a"}], "logprobs": True} if "chat" in path else {"prompt": "a"}
    answer = server.post(path, max_tokens=2, stream=stream, **({"logprobs": 0} | asks))
    assert answer.status_code == 200
    bodies = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    for body in bodies if stream else [answer.text]:
        json.loads(body, parse_constant=pytest.fail)
    found = f'"logprob":{told}' if "chat" in path else f'"token_logprobs":[{told}'
    assert found in answer.text


def test_a_prompt_can_be_scored_alone(client):
    prompt = TOKENIZER.encode("a b")
    answer = complete(client, prompt=prompt, echo=True, logprobs=0, max_tokens=0)
    assert answer.choices[0].text == "a b" and answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].logprobs.tokens) == len(prompt) and answer.usage.completion_tokens == 0
    assert answer.choices[0].logprobs.top_logprobs is None


def test_a_streamed_completion(client):
    chunks = list(complete(client, stream=True, max_tokens=6, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == TOKENIZER.decode(answer_ids(TEXT)[:6])
    assert chunks[-2].choices[0].finish_reason == "length" and chunks[-1].usage.completion_tokens == 6


def test_metrics_count(server, client):
    before = server.metrics()
    chat(client)
    after = server.wait_until_idle()
    name = 'k2jax_requests_total{endpoint="/v1/chat/completions",status="200"}'
    assert after[name] - before.get(name, 0) == 1
    assert after["k2jax_tokens_generated_total"] - before["k2jax_tokens_generated_total"] == len(answer_ids(TEXT))
    assert after["k2jax_slots"] == 4 and after["k2jax_time_to_first_token_seconds_count"] >= 1


def test_health(server):
    assert server.http.get("/health").json() == {"status": "ok"}
