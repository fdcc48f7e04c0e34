"""Reasoning in and out of the chat dialect, with Kimi K2.5's vocabulary."""

import pytest

from k2jax.agents.api import Detokenizer, GeneratedToken, ModelCard, PromptUsage
from k2jax.agents.api.api_error import ApiError
from k2jax.agents.api.chat_completions import DIALECT, ChatResponse
from k2jax.text import render_history
from tests.agents.api.sample import CARD, NAME, USER
from tests.text.test_thinking_chat import ANSWER, CHAT, tokenizer

THINKING = ModelCard(NAME, tokenizer(), tokenizer().vocab_size, 512, chat=CHAT)


def parse(card=THINKING, **fields):
    return DIALECT.parse({"model": NAME, "messages": USER, **fields}, card)


def answer(request, ids):
    """The only choice of the complete body."""
    response, reader = ChatResponse(request, THINKING), Detokenizer(request, 0, tokenizer())
    for i in ids:
        response.add(reader.feed([GeneratedToken(i, -0.5)]))
    response.add(reader.feed([], "stop"))
    return response.body(PromptUsage(tokens=7, cached=3))["choices"][0]


def written(reasoning, text):
    return [*tokenizer().encode(reasoning), tokenizer().special_id(ANSWER), *tokenizer().encode(text), CHAT.end]


def test_a_stop_string_in_the_reasoning_does_not_end_the_answer():
    choice = answer(parse(stop=["it"]), written("so it is", "Yes it was."))
    assert choice["message"] == {"role": "assistant", "content": "Yes ", "reasoning_content": "so it is"}


def test_without_thinking_the_prompt_closes_the_reasoning_and_the_answer_has_none():
    request = parse(chat_template_kwargs={"thinking": False})
    builder = render_history(CHAT, USER)
    builder.open_assistant(thinking=False)
    assert request.prompts == (tuple(builder.tokens),)
    choice = answer(request, [*tokenizer().encode("Yes."), CHAT.end])
    assert choice["message"] == {"role": "assistant", "content": "Yes."}


def test_reasoning_of_ended_cycles_is_not_read_again():
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "old"},
        {"role": "user", "content": "c"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "new",
            "tool_calls": [{"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "d"},
    ]
    text = tokenizer().decode(parse(messages=history).prompts[0])
    assert "new" in text and "old" not in text


def test_calls_that_nobody_asked_for_are_calls():
    special, text = tokenizer().special_id, tokenizer().encode
    ids = [special("<|tool_calls_section_begin|>"), special("<|tool_call_begin|>"), *text("functions.f:0"),
           special("<|tool_call_argument_begin|>"), *text("{}"), special("<|tool_call_end|>"),
           special("<|tool_calls_section_end|>"), CHAT.end]  # fmt: skip
    choice = answer(parse(), written("hm", "")[:-1] + ids)
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("card", "value"),
    [
        (THINKING, {"thinking": "no"}),
        (THINKING, {"other": 1}),
        (THINKING, 3),
        (CARD, {"thinking": True}),
    ],
)
def test_wrong_options_of_thinking_are_refused(card, value):
    with pytest.raises(ApiError) as error:
        parse(card, chat_template_kwargs=value)
    assert error.value.status == 400 and error.value.param == "chat_template_kwargs"
