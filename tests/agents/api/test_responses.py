"""Response bodies and chunks, as the types of OpenAI's own client read them."""

import json

from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
import pytest

from k2jax.agents.api import Detokenizer, GeneratedToken, PromptLogprobs, PromptUsage
from k2jax.agents.api.chat_completions import DIALECT, ChatResponse
from k2jax.agents.api.completions import CompletionResponse, parse_completion
from k2jax.agents.api.encoding import DONE, dump_json, encode_event
from tests.agents.api.sample import CALL_CONTENT, CALLING, CALLS, CARD, NAME, TEXT, TOKENIZER, TOOLS, USER, answer_ids

USAGE = PromptUsage(tokens=7, cached=3)


def deltas_of(request, ids, finish="stop", logprob=-0.25):
    """The deltas of every choice, token by token, choices in turn."""
    readers = [Detokenizer(request, choice, TOKENIZER) for choice in range(request.choices)]
    top = ((3, -0.5), (4, float("-inf")))[: request.sampling.top_logprobs]
    scored = len(request.prompts[0]) - 1 if request.sampling.prompt_logprobs else 0
    prompt = PromptLogprobs([-1.0] * scored, [top] * scored if top else ())
    for i in ids:
        for reader in readers:
            yield reader.feed([GeneratedToken(i, logprob, top)], None, prompt)
    for reader in readers:
        yield reader.feed([], finish)


def respond(response_class, request, ids, finish="stop", **options):
    response = response_class(request, CARD)
    if not request.stream:
        for delta in deltas_of(request, ids, finish, **options):
            response.add(delta)
        return response.body(USAGE)
    chunks = [chunk for delta in deltas_of(request, ids, finish, **options) for chunk in response.chunks(delta)]
    return chunks + response.closing_chunks(USAGE)


def chat(ids, logprob=-0.25, **fields):
    request = DIALECT.parse({"model": NAME, "messages": USER, "seed": 1, **fields}, CARD)
    return respond(ChatResponse, request, ids, logprob=logprob)


def completion(ids, logprob=-0.25, **fields):
    request = parse_completion({"model": NAME, "prompt": [5, 6, 7], "seed": 1, **fields}, CARD)
    return respond(CompletionResponse, request, ids, "length", logprob=logprob)


def strict(model, value):
    """The value as the client's type, which must know every field; types of JSON are not converted."""
    parsed = model.model_validate(value, strict=True)
    assert not parsed.model_extra
    assert json.loads(parsed.model_dump_json(exclude_unset=True)) == json.loads(dump_json(value))
    return parsed


def test_a_complete_chat_response():
    response = strict(ChatCompletion, chat(answer_ids(TEXT), n=2))
    assert [choice.index for choice in response.choices] == [0, 1]
    assert all(choice.message.content == TEXT and choice.finish_reason == "stop" for choice in response.choices)
    assert response.usage.prompt_tokens == 7 and response.usage.prompt_tokens_details.cached_tokens == 3
    assert response.usage.completion_tokens == 2 * len(answer_ids(TEXT))
    assert response.usage.total_tokens == 7 + response.usage.completion_tokens


def test_a_streamed_chat_response():
    *chunks, end = chat(answer_ids(TEXT), stream=True, stream_options={"include_usage": True})
    assert end == DONE and encode_event(end) == b"data: [DONE]\n\n"
    *chunks, last = [strict(ChatCompletionChunk, chunk) for chunk in chunks]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert last.choices == [] and last.usage.completion_tokens == len(answer_ids(TEXT))
    assert len({chunk.id for chunk in chunks}) == 1


def test_tool_calls_complete_and_streamed():
    [choice] = strict(ChatCompletion, chat(CALLING, tools=TOOLS)).choices
    assert choice.message.content == CALL_CONTENT and choice.finish_reason == "tool_calls"
    assert [(call.function.name, call.function.arguments) for call in choice.message.tool_calls] == CALLS
    names, arguments = {}, {}
    for chunk in chat(CALLING, tools=TOOLS, stream=True)[:-1]:
        for call in strict(ChatCompletionChunk, chunk).choices[0].delta.tool_calls or []:
            if call.id:
                names[call.index] = call.function.name
            arguments[call.index] = arguments.get(call.index, "") + call.function.arguments
    assert [(names[i], arguments[i]) for i in sorted(names)] == CALLS


def test_an_answer_of_calls_alone_has_no_content():
    calls_alone = CALLING[len(TOKENIZER.encode(CALL_CONTENT)) :]
    assert strict(ChatCompletion, chat(calls_alone, tools=TOOLS)).choices[0].message.content is None


def test_chat_logprobs_are_finite_json():
    body = chat(answer_ids(TEXT), logprobs=True, top_logprobs=2)
    content = strict(ChatCompletion, body).choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in content[:-1]).decode() == TEXT
    assert [top.logprob for top in content[0].top_logprobs] == [-0.5, -9999.0]  # JSON has no infinity


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("logprob", "shown"), [(float("nan"), "null"), (-float("inf"), "-9999.0")])
def test_log_probabilities_that_are_no_numbers_are_json_too(stream, logprob, shown):
    for parts, field in (
        (chat([5, 6], logprob, logprobs=True, stream=stream), f'"logprob":{shown}'),
        (completion([5, 6], logprob, logprobs=0, stream=stream), f'"token_logprobs":[{shown}'),
    ):
        assert field in dump_json(parts[:-1] if stream else parts).decode()  # which refuses NaN and infinities


def test_a_complete_completion_response():
    ids = TOKENIZER.encode(TEXT)
    [first, second] = strict(Completion, completion(ids, n=2, logprobs=2)).choices
    assert (first.index, second.index) == (0, 1) and first.text == second.text == TEXT
    assert first.finish_reason == "length" and len(first.logprobs.tokens) == len(ids)
    chosen = first.logprobs.top_logprobs[0][first.logprobs.tokens[0]]
    assert chosen == first.logprobs.token_logprobs[0] == -0.25


@pytest.mark.parametrize("stream", [False, True])
def test_an_echoed_completion(stream):
    """Its logprobs begin with null, which OpenAI sends although the client's types do not know it."""
    ids = TOKENIZER.encode(TEXT)
    response = completion(ids, stream=stream, logprobs=2, echo=True)
    choices = [part["choices"][0] for part in (response[:-1] if stream else [response])]
    assert "".join(choice["text"] for choice in choices) == TOKENIZER.decode([5, 6, 7, *ids])
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    logprobs = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    values = [value for entry in logprobs for value in entry["token_logprobs"]]
    assert values == [None, -1.0, -1.0] + [-0.25] * len(ids)
    first, *others = [top for entry in logprobs for top in entry["top_logprobs"]][:3]
    assert first is None and [len(top) for top in others] == [3, 3]  # two alternatives and the token itself


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_are_where_they_are_documented(stream):
    """A chat has its prompt's ids beside the choices, a completion has them in each choice."""
    ids = answer_ids(TEXT)
    chats = chat(ids, stream=stream, return_token_ids=True)
    completions = completion(ids, stream=stream, return_token_ids=True, prompt=[[5], [6, 7]])
    chats, completions = (chats[:-1], completions[:-1]) if stream else ([chats], [completions])
    assert "prompt_token_ids" in chats[0] and "prompt_token_ids" not in chats[0]["choices"][0]
    assert [i for part in chats for i in part["choices"][0].get("token_ids", [])] == ids
    prompts = {
        choice["index"]: choice["prompt_token_ids"]
        for part in completions
        for choice in part["choices"]
        if "prompt_token_ids" in choice
    }
    assert prompts == {0: [5], 1: [6, 7]}
