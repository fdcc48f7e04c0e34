"""Histories of clients on all routes: fields of messages as in training data, and answers that are continued."""

import json

import pytest

from k2jax.agents.api import Detokenizer, GeneratedToken, ModelCard, PromptUsage, anthropic, chat_completions, responses
from k2jax.agents.api.anthropic import read_messages
from k2jax.agents.api.api_error import ApiError
from k2jax.agents.api.chat_completions import read_chat
from k2jax.agents.api.responses import read_response
from k2jax.text import chat_format
from k2jax.trajectory.filters import no_failed_call
from k2jax.trajectory.types import Node, Trajectory
from tests.agents.api.sample import CARD, NAME, TOOLS, USER
from tests.text import kimi

THINKING = ModelCard(NAME, kimi.thinking_tokenizer(), 800, 512, chat=chat_format(kimi.thinking_tokenizer()))
ROUTES = {"chat": chat_completions.DIALECT, "responses": responses.DIALECT, "messages": anthropic.DIALECT}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "25"}


def body(route, messages, **fields):
    fields = {"model": NAME, "input" if route == "responses" else "messages": messages, **fields}
    return fields | ({"max_tokens": 5} if route == "messages" else {})


def prompt(messages, route="chat", card=CARD, **fields):
    """The text of a prompt; special tokens by name."""
    return kimi.text_of(ROUTES[route].parse(body(route, messages, **fields), card).prompts[0], card.tokenizer)


def refusal(messages, route="chat", card=CARD, **fields):
    with pytest.raises(ApiError) as error:
        prompt(messages, route, card, **fields)
    assert error.value.status == 400 and "\n" not in error.value.message
    return error.value.message


def answered(parts, route="chat", card=CARD, finish="stop", **fields):
    """What a client receives of an answer, whole and streamed; names of special tokens in the parts are their ids."""
    tokenizer = card.tokenizer
    ids = [i for p in parts for i in ([tokenizer.special_id(p)] if tokenizer.has_special(p) else tokenizer.encode(p))]
    respond, user = ROUTES[route].respond, "Hi" if route == "responses" else USER
    request = ROUTES[route].parse(body(route, user, **fields), card)
    reader, response, streamed = Detokenizer(request, 0, tokenizer), respond(request, card), respond(request, card)
    chunks = []
    for delta in [*(reader.feed([GeneratedToken(i, -0.5)]) for i in ids), reader.feed([], finish)]:
        response.add(delta)
        chunks += streamed.chunks(delta)
    return response.body(PromptUsage(3, 0)), chunks


@pytest.mark.parametrize("route", list(ROUTES))
@pytest.mark.parametrize("card", [CARD, THINKING])
def test_ids_of_calls_are_those_of_the_format_in_the_call_and_in_its_result(route, card):
    messages = {
        "chat": [*USER, CALLING, RESULT],
        "responses": [
            *USER,
            {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": " "},
            {"type": "function_call_output", "call_id": "call_1", "output": "25"},
        ],
        "messages": [
            *USER,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "25"}]},
        ],
    }
    text = prompt(messages[route], route, card)
    assert "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>" in text
    assert "## Return of functions.f:0\n25<|im_end|>" in text and "call_1" not in text


def test_results_without_a_call_are_refused():
    assert "no such call before it" in refusal([*USER, RESULT])


@pytest.mark.parametrize("name", ["reasoning", "thinking", "reasoning_content"])
def test_reasoning_of_an_open_cycle_is_read_under_every_name(name):
    history = [*USER, CALLING | {name: "R"}, RESULT]
    assert "<think>R</think><|tool_calls_section_begin|>" in prompt(history, card=THINKING)
    assert "has reasoning, which this model's chat format does not have" in refusal(history)
    read = read_chat(body("chat", history), CARD, lenient=True)
    assert read.left_out == ("messages[1].reasoning_content",) and "reasoning_content" not in read.messages[1]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "assistant", "content": "x", "conten": "y"}, "messages[1] has the field 'conten'"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "field 'tool_calls'"),
        ({"role": "user", "content": [{"type": "file", "text": "x"}]}, "a part of type 'file'"),
        ({"role": "assistant", "content": "x", "audio": {"id": "a"}}, "field 'audio'"),
    ],
)
def test_fields_that_nobody_reads_are_refused_or_listed(message, words):
    assert words in refusal([*USER, message])
    if "field" in words:
        read = read_chat(body("chat", [*USER, message]), CARD, lenient=True)
        assert read.left_out == (f"messages[1].{words.split(chr(39))[1]}",)


@pytest.mark.parametrize(
    ("route", "items"),
    [
        ("messages", [USER[0] | {"conten": "x"}]),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "Hi", "conten": "x"}]}]),
        ("responses", [USER[0] | {"conten": "x"}]),
        ("responses", [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "conten": "x"}]),
    ],
)
def test_fields_of_items_and_blocks_are_refused_or_listed(route, items):
    assert "[0] has the field 'conten'" in refusal(items, route)
    read = {"messages": read_messages, "responses": read_response}[route]
    [left_out] = read(body(route, items), CARD, lenient=True).left_out
    assert left_out.endswith("[0].conten")


def test_a_text_with_a_tag_of_reasoning_stays_whole_in_a_history():
    history = [*USER, {"role": "assistant", "content": "use </think> to close"}, *USER]
    assert "<think></think>use </think> to close<|im_end|>" in prompt(history, card=THINKING)


BEGUN = {"role": "assistant", "content": '{"a":'}
HEAD = "<|im_assistant|>assistant<|im_middle|>"


@pytest.mark.parametrize(
    ("route", "message", "fields"),
    [
        ("chat", BEGUN | {"partial": True}, {}),
        ("chat", BEGUN | {"prefix": True}, {}),
        ("chat", BEGUN, {"continue_final_message": True, "add_generation_prompt": False}),
        ("responses", BEGUN | {"partial": True}, {}),
        ("messages", BEGUN, {}),
        ("messages", BEGUN | {"content": [{"type": "text", "text": '{"a":'}]}, {}),
    ],
)
def test_an_answer_that_is_begun_is_continued(route, message, fields):
    assert prompt([*USER, message], route, **fields).endswith(f'{HEAD}{{"a":')
    assert prompt([*USER, message], route, THINKING, **fields).endswith(f'{HEAD}<think></think>{{"a":')
    if route != "messages":  # without a word of it the message is whole, and another one begins
        assert prompt([*USER, BEGUN], route).endswith(f'{HEAD}{{"a":<|im_end|>{HEAD}')
    request = ROUTES[route].parse(body(route, [*USER, message], **fields), THINKING)
    assert not request.thinking and request.chat is THINKING.chat  # what is sampled is the answer's text


def test_an_answer_that_is_begun_may_have_reasoning():
    begun = BEGUN | {"partial": True, "reasoning_content": "R"}
    options = {"chat_template_kwargs": {"thinking": True}}
    assert prompt([*USER, begun], card=THINKING, **options).endswith(f'{HEAD}<think>R</think>{{"a":')
    assert "begin with reasoning_content" in refusal([*USER, BEGUN | {"partial": True}], card=THINKING, **options)
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 9}}
    assert "begin with reasoning_content" in refusal([*USER, BEGUN], "messages", THINKING, **thinking)


@pytest.mark.parametrize(
    ("messages", "route", "fields", "words"),
    [
        ([BEGUN | {"partial": True}, *USER], "chat", {}, "the last message alone"),
        ([*USER, CALLING | {"partial": True}], "chat", {}, "more than a text"),
        ([{"role": "user", "content": "x", "partial": True}], "chat", {}, "field 'partial'"),
        ([*USER, BEGUN | {"content": "a "}], "messages", {}, "must not end with white space"),
        (
            [*USER, BEGUN],
            "chat",
            {"continue_final_message": True, "add_generation_prompt": True},
            "needs add_",
        ),
        ([*USER, BEGUN], "chat", {"add_generation_prompt": False}, "neither goes without the other"),
    ],
)
def test_what_cannot_be_continued_is_refused(messages, route, fields, words):
    assert words in refusal(messages, route, **fields)


SECTION = ["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.f:0", "<|tool_call_argument_begin|>"]
SECTION_END = ["<|tool_call_end|>", "<|tool_calls_section_end|>"]


@pytest.mark.parametrize("tools", [[], TOOLS])
@pytest.mark.parametrize("card", [CARD, THINKING])
def test_special_tokens_are_no_text_and_the_next_message_is_not_part_of_this_one(card, tools):
    begin = ["r[", "[PAD]", "]s", "</think>"] if card is THINKING else []
    parts = [*begin, "a", "[PAD]", "b", "<|im_user|>", "user", "<|im_middle|>", "c", *SECTION, "{}", *SECTION_END]
    whole, chunks = answered(parts, card=card, tools=tools)
    message = whole["choices"][0]["message"]
    assert message["content"] == "ab" and message.get("reasoning_content", "") == ("r[]s" if begin else "")
    assert "tool_calls" not in message and whole["choices"][0]["finish_reason"] == "stop"
    assert "".join(c["choices"][0].get("delta", {}).get("content") or "" for c in chunks) == "ab"


@pytest.mark.parametrize("arguments", [[], [" "], ["\n", " "], ["{}"]])
@pytest.mark.parametrize("tools", [False, True])
def test_blank_arguments_are_an_empty_object_on_all_routes(arguments, tools):
    parts = [*SECTION, *arguments, *SECTION_END]
    declared = {name: {} for name in ROUTES}
    if tools:
        declared["chat"] = {"tools": TOOLS}
        declared["responses"] = {"tools": [{"type": "function", "name": "f", "parameters": {}}]}
        declared["messages"] = {"tools": [{"name": "f", "input_schema": {}}]}
    whole, chunks = answered(parts, **declared["chat"])
    assert whole["choices"][0]["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    calls = [call for chunk in chunks for call in chunk["choices"][0].get("delta", {}).get("tool_calls", ())]
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {}
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    assert answered(parts, "responses", **declared["responses"])[0]["output"][0]["arguments"] == "{}"
    block = answered(parts, "messages", **declared["messages"])[0]["content"][0]
    assert (block["type"], block["input"]) == ("tool_use", {})


def test_a_client_can_tell_the_calls_of_an_answer_apart():
    parts = [*SECTION[:1]]
    for written in ("f", "f", "functions.f:1", ""):
        parts += [SECTION[1], *([written] if written else []), SECTION[3], "{}", SECTION_END[0]]
    whole, _ = answered([*parts, SECTION_END[1]])
    ids = [call["id"] for call in whole["choices"][0]["message"]["tool_calls"]]
    assert ids == ["f", "functions.f:1", "functions.f:2", "functions.:3"]


def test_arguments_that_were_cut_off_are_not_completed():
    whole, _ = answered(SECTION, finish="length")
    assert whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == ""


@pytest.mark.parametrize(("content", "shown"), [("boom", "Error: boom"), ("error 3", "error 3")])
def test_a_result_that_is_an_error_says_so_to_the_model_and_to_the_filter(content, shown):
    result = {"type": "tool_result", "tool_use_id": "t", "content": content, "is_error": True}
    calling = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    history = [*USER, calling, {"role": "user", "content": [result]}]
    assert f"## Return of functions.f:0\n{shown}<|im_end|>" in prompt(history, "messages")
    message = read_messages(body("messages", history), CARD).messages[-1]
    assert message["is_error"] is True
    trajectory = Trajectory("t", "d", (0, 0, 0))
    trajectory.add(Node.observed(-1, [1], message))
    assert not no_failed_call(trajectory)
