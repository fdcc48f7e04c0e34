"""The deltas of a choice, against decoding its tokens at once."""

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from k2jax.agents.api import Detokenizer, GeneratedToken, PromptLogprobs
from k2jax.agents.api.chat_completions import DIALECT
from k2jax.agents.api.completions import parse_completion
from tests.agents.api.sample import CALL_CONTENT, CALLING, CALLS, CARD, NAME, TEXT, TOKENIZER, TOOLS, USER, answer_ids


def completion(**fields):
    return parse_completion({"model": NAME, "prompt": [5, 6, 7], **fields}, CARD)


def chat(**fields):
    return DIALECT.parse({"model": NAME, "messages": USER, **fields}, CARD)


def feed(request, *pieces, finish="stop", prompt_logprobs=()):
    """Deltas of pieces of ids; the finish reason comes with the last piece."""
    detokenizer = Detokenizer(request, 0, TOKENIZER)
    tokens = [[GeneratedToken(i, -0.25, ((i, -0.25),)) for i in piece] for piece in pieces]
    ends = [None] * (len(pieces) - 1) + [finish]
    scores = PromptLogprobs(prompt_logprobs)
    return [detokenizer.feed(piece, end, scores) for piece, end in zip(tokens, ends, strict=True)]


def text_of(deltas):
    return "".join(delta.text for delta in deltas)


def cut(ids, sizes):
    """The ids in pieces of these sizes, and the rest."""
    pieces = []
    for size in sizes:
        pieces.append(ids[:size])
        ids = ids[size:]
    return [*pieces, ids]


SIZES = st.lists(st.integers(0, 4), max_size=20)


@given(sizes=SIZES)
def test_how_tokens_arrive_does_not_matter(sizes):
    deltas = feed(chat(), *cut(answer_ids(TEXT), sizes))
    assert text_of(deltas) == TEXT and deltas[-1].finish == "stop"
    assert [token.id for delta in deltas for token in delta.tokens] == answer_ids(TEXT)
    assert not any("\ufffd" in delta.text for delta in deltas)


@given(sizes=SIZES)
def test_tool_calls_are_complete_however_tokens_arrive(sizes):
    deltas = feed(chat(tools=TOOLS), *cut(CALLING, sizes))
    assert text_of(deltas) == CALL_CONTENT and deltas[-1].finish == "tool_calls"
    calls = [call for delta in deltas for call in delta.calls]
    assert [(call.name, call.id) for call in calls if call.id] == [
        (name, f"functions.{name}:{i}") for i, (name, _) in enumerate(CALLS)
    ]
    for i, (_, arguments) in enumerate(CALLS):
        assert json.loads("".join(call.arguments for call in calls if call.index == i)) == json.loads(arguments)


def test_an_answer_is_read_alike_whether_or_not_tools_were_declared():
    without, declared = (feed(chat(**fields), CALLING) for fields in ({}, {"tools": TOOLS}))
    assert without == declared and without[0].calls and without[0].finish == "tool_calls"


def test_the_end_token_is_no_text():
    """Even if the vocabulary has it as an ordinary token."""
    text, end = TOKENIZER.encode("fox"), TOKENIZER.encode(" end")[0]
    request = chat()
    request = dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, stop_tokens=(end,)))
    [delta] = feed(request, [*text, end])
    assert (delta.text, len(delta.tokens), delta.finish) == ("fox", len(text) + 1, "stop")


@pytest.mark.parametrize("finish", [None, "length"])
def test_a_stop_string_ends_the_choice(finish):
    ids = TOKENIZER.encode(TEXT)
    deltas = feed(chat(stop=["brown fox", "never"]), *([i] for i in ids), finish=finish)
    assert text_of(deltas) == "The quick "
    end = next(n for n in range(len(ids)) if deltas[n].finish)
    assert "brown fox" in TOKENIZER.decode(ids[: end + 1]) and "brown fox" not in TOKENIZER.decode(ids[:end])
    assert deltas[end].finish == "stop"


def test_held_text_comes_with_the_end():
    [first, last] = feed(completion(stop="fox!"), TOKENIZER.encode("a fox"), [], finish="length")
    assert (first.text, last.text, last.finish) == ("a ", "fox", "length")


def test_other_reasons_of_the_engine_pass():
    assert feed(chat(tools=TOOLS), CALLING[:3], [], finish="cancelled")[-1].finish == "cancelled"


def test_offsets_point_into_the_text():
    [delta] = feed(completion(), TOKENIZER.encode(TEXT), finish="length")
    for token in delta.tokens:
        piece = TOKENIZER.token_bytes(token.id)
        assert delta.text[token.offset :].encode().startswith(piece) or not _is_text(piece)


def _is_text(piece):
    try:
        return bool(piece.decode())
    except UnicodeDecodeError:
        return False


def test_an_echo_begins_with_the_prompt():
    prompt = TOKENIZER.encode("月 a b")
    request = completion(prompt=prompt, echo=True, logprobs=0, stop="a")
    first, second = feed(
        request, TOKENIZER.encode("c"), TOKENIZER.encode(" d"), prompt_logprobs=[-1.0] * (len(prompt) - 1)
    )
    assert first.text + second.text == "月 a bc d"  # stop strings in the prompt do not count
    assert [token.logprob for token in first.tokens] == [None, *[-1.0] * (len(prompt) - 1), -0.25]
    assert [token.sampled for token in first.tokens] == [False] * len(prompt) + [True]


@pytest.mark.parametrize("finish", ["length", "stop"])
def test_a_prompt_is_scored_without_a_token(finish):
    """Whatever the engine's one token is."""
    request = completion(echo=True, logprobs=0, max_tokens=0)
    assert request.choice_sampling(0, 256).max_tokens == 1
    [delta] = feed(request, [9], finish=finish, prompt_logprobs=[-1.0, -2.0])
    assert [token.logprob for token in delta.tokens] == [None, -1.0, -2.0] and delta.finish == "length"
    assert delta.text == TOKENIZER.decode([5, 6, 7])
