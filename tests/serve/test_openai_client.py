"""Chats and completions through the official client; what single fields do is tested in tests/api."""

import json

import openai
import pytest

from tests.agents.api.sample import CALL_CONTENT, CALLS, NAME, TEXT, TOKENIZER, TOOLS, answer_ids, special


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


def test_a_chat_answer_whole_and_streamed(server, client):
    extra = {"return_token_ids": True}
    answer = chat(client, extra_body=extra, logprobs=True, top_logprobs=2)
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert choice.message.tool_calls is None and choice.token_ids == answer_ids(TEXT)
    prompt, sampling = asked(server)
    assert TOKENIZER.decode(prompt) == "systemBe brief.userHiassistant" and answer.prompt_token_ids == list(prompt)
    assert set(sampling.stop_tokens) == {special("<|im_end|>"), TOKENIZER.eos}
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), len(answer_ids(TEXT)))
    assert usage.prompt_tokens_details.cached_tokens == len(prompt) // 2
    content = choice.logprobs.content
    assert len(content) == len(answer_ids(TEXT)) and content[-1].token == "<|im_end|>" and content[0].logprob == -0.25
    assert [[top.logprob for top in token.top_logprobs] for token in content] == [[-1.0, -2.0]] * len(content)
    options = {"include_usage": True}
    chunks = list(chat(client, stream=True, stream_options=options, extra_body=extra, logprobs=True, top_logprobs=2))
    *chunks, last = chunks
    deltas = [chunk.choices[0] for chunk in chunks]
    assert deltas[0].delta.role == "assistant" and "".join(each.delta.content or "" for each in deltas) == TEXT
    assert not any("\ufffd" in (each.delta.content or "") for each in deltas)
    assert [each.finish_reason for each in deltas] == [None] * (len(deltas) - 1) + ["stop"] and len(deltas) > 10
    assert last.choices == [] and last.usage == usage and all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1 and {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert [token for each in deltas if each.logprobs for token in each.logprobs.content] == content
    assert [i for each in deltas for i in getattr(each, "token_ids", None) or []] == answer_ids(TEXT)


def test_a_chat_without_limit_may_fill_the_sequence(server, client):
    chat(client)
    prompt, sampling = asked(server)
    assert sampling.max_tokens == 256 - len(prompt)
    with pytest.raises(openai.BadRequestError, match=f"{10**9} by max_completion_tokens") as caught:
        chat(client, max_completion_tokens=10**9)
    assert caught.value.code == "context_length_exceeded"


def test_tool_calls_whole_and_streamed_and_their_way_back(server, client):
    [choice] = chat(client, tools=TOOLS).choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == CALL_CONTENT
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [(f"functions.{name}:{i}", name, arguments) for i, (name, arguments) in enumerate(CALLS)]
    assert TOKENIZER.decode(asked(server)[0]).startswith('tool_declare[{"function"')
    content, names, arguments = "", {}, {}
    for chunk in chat(client, tools=TOOLS, stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for call in delta.tool_calls or []:
            if call.id:
                names[call.index] = call.id, call.function.name
            arguments[call.index] = arguments.get(call.index, "") + call.function.arguments
    assert content == CALL_CONTENT and chunk.choices[0].finish_reason == "tool_calls"
    assert [(*names[i], arguments[i]) for i in sorted(names)] == calls
    result = {"role": "tool", "tool_call_id": calls[0][0], "content": "rain"}
    history = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Weather?"}]
    chat(client, messages=[*history, choice.message.model_dump(), result], tools=TOOLS, tool_choice="auto")
    text = TOKENIZER.decode(asked(server)[0])
    assert "systemBe brief." in text and f"## Return of {calls[0][0]}\nrain" in text
    [choice] = chat(client, tools=TOOLS, tool_choice="none").choices
    assert choice.message.content == TEXT and "get_weather" not in TOKENIZER.decode(asked(server)[0])


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
    for given, meant in ((-1, 0), (10**18, TOKENIZER.vocab_size)):  # what fits no integer of the engine means the same
        chat(client, extra_body={"top_k": given})
        assert asked(server)[1].top_k == meant


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
    assert chat(client, stop="end!").choices[0].message.content == TEXT  # one that never comes hides nothing
    assert chat(client, max_tokens=2).choices[0].finish_reason == "length"


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


@pytest.mark.parametrize("prompt", [[5, 6, 7], [[5, 6, 7], [8]], ["a", "b c"], "a"])
def test_prompts_of_every_kind(client, prompt):
    many = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    answer = complete(client, prompt=prompt, n=2, max_tokens=4, extra_body={"return_token_ids": True})
    expected = [TOKENIZER.encode_document(item) if isinstance(item, str) else item for item in many]
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert [choice.index for choice in answer.choices] == list(range(2 * len(many)))
    assert [choice.prompt_token_ids for choice in answer.choices] == [ids for ids in expected for _ in range(2)]
    assert all(choice.token_ids == answer_ids(TEXT)[:4] for choice in answer.choices)
    assert answer.usage.prompt_tokens == sum(map(len, expected)) and answer.usage.completion_tokens == 8 * len(many)


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
    assert text == TOKENIZER.decode([*prompt, *answer_ids(TEXT)[:5]]) and choices[-1].finish_reason == "length"
    assert asked(server)[1].prompt_logprobs
    told = [None, *(-0.5 - i for i in range(len(prompt) - 1)), *[-0.25] * 5]
    assert logprobs["token_logprobs"] == told and logprobs["top_logprobs"][0] is None
    for top, token, logprob in list(zip(logprobs["top_logprobs"], logprobs["tokens"], told, strict=True))[1:]:
        assert len(top) == 2 and top[token] == logprob
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


def test_metrics_count(server, client):
    before = server.wait_until_idle()
    chat(client)
    after = server.wait_until_idle()
    name = 'k2jax_requests_total{endpoint="/v1/chat/completions",status="200"}'
    assert after[name] - before.get(name, 0) == 1
    assert after["k2jax_tokens_generated_total"] - before["k2jax_tokens_generated_total"] == len(answer_ids(TEXT))
    assert after["k2jax_slots"] == 4 and after["k2jax_time_to_first_token_seconds_count"] >= 1
    assert server.http.get("/health").json() == {"status": "ok"}
