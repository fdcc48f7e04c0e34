"""The official client of every chat dialect against an engine with scripted tokens, whole and streamed."""

import anthropic
import openai
import pytest

from tests.agents.api.sample import CALL_CONTENT, CALLS, NAME, TEXT, TOKENIZER, answer_ids
from tests.serve.clients import CLIENTS, Chat, Messages, Responses, user
from tests.serve.fakes import FakeEngine, live

HI = [user("Hi")]
each_client = pytest.mark.parametrize("kind", CLIENTS.values(), ids=CLIENTS)
each_way = pytest.mark.parametrize("stream", [False, True])


def prompt_of(server):
    return server.engine.asked[-1][0]


@each_way
@each_client
def test_an_answer_in_text(server, kind, stream):
    answer = kind(server.url).ask(HI, system="Be brief.", stream=stream)
    prompt = prompt_of(server)
    assert TOKENIZER.decode(prompt) == "systemBe brief.userHiassistant"
    assert answer[:4] == ("", TEXT, [], "stop")
    assert answer.usage == (len(prompt), len(prompt) // 2, len(answer_ids(TEXT)))


@each_way
@each_client
def test_tool_calls_and_their_way_back(server, kind, stream):
    client = kind(server.url)
    answer = client.ask(HI, tools=["get_weather"], stream=stream)
    calls = [(f"functions.{name}:{i}", name, arguments) for i, (name, arguments) in enumerate(CALLS)]
    assert answer[:4] == ("", CALL_CONTENT, calls, "tool_calls")
    assert TOKENIZER.decode(prompt_of(server)).startswith('tool_declare[{"function"')
    client.ask([*HI, *answer.echo, *client.results(calls, "ok")], stream=stream)
    called = "".join(label + arguments for label, _, arguments in calls)
    returned = "".join(f"tool## Return of {label}\nok" for label, _, _ in calls)
    echoed = f"userHiassistant{CALL_CONTENT}{called}{returned}assistant"
    assert TOKENIZER.decode(prompt_of(server)).endswith(echoed)


@each_way
@each_client
def test_reasoning_comes_apart_and_comes_back_into_the_prompt(thinking_server, kind, stream):
    client, card = kind(thinking_server.url), thinking_server.service.card
    answer = client.ask(HI, stream=stream)
    assert answer[:4] == ("hm", "Yes.", [], "stop")
    calling = client.ask(HI, tools=["get_weather"], stream=stream)
    client.ask([*HI, *calling.echo, *client.results(calling.calls, "x")])
    assert "<think>hm</think>" in "".join(map(card.token_text, prompt_of(thinking_server)))
    client.ask(HI, **client.unthinking)
    assert prompt_of(thinking_server)[-1] == card.tokenizer.special_id("</think>")


@each_way
@each_client
def test_a_limit_ends_an_answer(server, kind, stream):
    answer = kind(server.url).ask(HI, stream=stream, **{kind.limit: 3})
    assert (answer.finish, answer.usage[2]) == ("length", 3)


def test_reasoning_tokens_are_counted(thinking_server):
    response = Responses(thinking_server.url).api.responses.create(model=NAME, input="Hi")
    thought = thinking_server.service.card.tokenizer.encode("hm")
    assert response.usage.output_tokens_details.reasoning_tokens == len(thought)


@each_way
def test_arguments_that_are_no_json_object_arrive_in_one(server, stream):
    answer = Messages(server.url).ask([user("malformed")], tools=["get_weather"], stream=stream)
    assert [arguments for _, _, arguments in answer.calls] == [
        '{"malformed_arguments": "{\\"a\\": 1e999}"}',
        '{"malformed_arguments": "[1]"}',
    ]


def test_stop_sequences_results_and_counts_of_anthropics_messages(server):
    client = Messages(server.url)
    options = {"model": NAME, "max_tokens": 100}
    stopped = client.api.messages.create(**options, messages=HI, stop_sequences=["fox", "zebra"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "fox")
    assert stopped.content[0].text == TEXT.partition("fox")[0]
    calls = [{"type": "tool_use", "id": f"functions.f:{i}", "name": "f", "input": {"i": i}} for i in (0, 1)]
    results = [  # messages of their own, before the text beside them
        {"type": "tool_result", "tool_use_id": "functions.f:0", "content": "zero"},
        {"type": "tool_result", "tool_use_id": "functions.f:1", "content": [{"type": "text", "text": "one"}]},
        {"type": "text", "text": "go on"},
    ]
    history = [*HI, {"role": "assistant", "content": calls}, user(results)]
    counted = client.api.messages.count_tokens(model=NAME, messages=history).input_tokens
    client.ask(history)
    assert counted == len(prompt_of(server))
    assert TOKENIZER.decode(prompt_of(server)).endswith(
        'assistantfunctions.f:0{"i": 0}functions.f:1{"i": 1}tool## Return of functions.f:0\nzero'
        "tool## Return of functions.f:1\noneusergo onassistant"
    )


def test_models_are_listed(server):
    for kind in (Responses, Messages):
        models = kind(server.url).api.models
        assert [model.id for model in models.list()] == [NAME] == [models.retrieve(NAME).id]
    [model] = Messages(server.url).api.models.list().data
    assert (model.type, model.max_input_tokens, model.display_name) == ("model", 256, NAME) and not model.model_extra


@each_client
def test_errors_are_those_of_the_client(server, kind):
    library = anthropic if kind is Messages else openai
    with (
        live(FakeEngine(lambda request: [2]), TOKENIZER, vocab=TOKENIZER.vocab_size, keys=["sk-secret"]) as secret,
        pytest.raises(library.AuthenticationError, match="a valid API key"),
    ):
        kind(secret.url, "sk-other").ask(HI)
    with pytest.raises(library.NotFoundError, match="does not exist"):
        kind(server.url).ask(HI, model="other")
    with pytest.raises(library.BadRequestError, match="colour") as error:
        kind(server.url).ask(HI, extra_body={"colour": "red"})
    body = error.value.body if library is openai else error.value.body["error"]
    assert body["type"] == "invalid_request_error"


def chat(server, **options):
    return Chat(server.url).api.chat.completions.create(**{"model": NAME, "messages": HI, "seed": 1} | options)


def test_several_choices_have_seeds_of_their_own(server):
    answer = chat(server, n=3, seed=200, temperature=0.25)
    texts = [choice.message.content for choice in answer.choices]
    assert texts[0] == "seed 200" and len(set(texts)) == 3
    assert answer.usage.prompt_tokens == len(prompt_of(server))  # once for all choices
    streamed = {}
    for chunk in chat(server, n=3, seed=2**32 + 200, temperature=0.25, stream=True):
        choice = chunk.choices[0]
        streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
    assert streamed == dict(enumerate(texts))


@each_way
def test_stop_strings_end_the_text_and_the_work(server, stream):
    before = server.engine.generated
    answer = chat(server, stop=["brown fox", "never"], stream=stream)
    if stream:
        chunks = list(answer)
        text, reason = "".join(c.choices[0].delta.content or "" for c in chunks), chunks[-1].choices[0].finish_reason
    else:
        text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert (text, reason) == ("The quick ", "stop")
    server.wait_until_idle()
    needed = next(n for n in range(99) if "brown fox" in TOKENIZER.decode(answer_ids(TEXT)[:n]))
    assert server.engine.generated - before == needed
    assert chat(server, stop="end!").choices[0].message.content == TEXT  # one that never comes hides nothing
    assert chat(server, max_tokens=2).choices[0].finish_reason == "length"


def test_metrics_count(server):
    before = server.wait_until_idle()
    chat(server)
    after = server.wait_until_idle()
    name = 'k2jax_requests_total{endpoint="/v1/chat/completions",status="200"}'
    assert after[name] - before.get(name, 0) == 1
    assert after["k2jax_tokens_generated_total"] - before["k2jax_tokens_generated_total"] == len(answer_ids(TEXT))
    assert after["k2jax_slots"] == 4 and after["k2jax_time_to_first_token_seconds_count"] >= 1
    assert server.http.get("/health").json() == {"status": "ok"}
