"""Llama 3's format, against the package renderers."""

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest
from renderers.llama_3 import Llama3Renderer

from k2jax.text import ChatBuilder, byte_tokenizer, chat_format
from k2jax.text.answers import BAD_JSON, NO_BEGIN, STRAY_TOKEN, Finished
from k2jax.text.json_calls import BAD_CALL, may_begin_call
from k2jax.text.llama_calls import LlamaParser
from tests.refusal import refused
from tests.text import kimi, qwen
from tests.text.answers import check, joined
from tests.text.qwen import LLAMA, LLAMA_3
from tests.text.test_qwen_chat import CALLS, TEXT, TOOLS, build, check_resumed

TOKENIZER = qwen.tokenizer(LLAMA)
ANSWERING = TEXT.map(lambda text: {"role": "assistant", "content": text})
CALLING = CALLS.map(lambda calls: {"role": "assistant", "content": "", "tool_calls": calls[:1]})
RESULT = TEXT.map(lambda text: {"role": "tool", "content": text})
ASKING = st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "system"]), TEXT)
OPENING = st.builds(
    lambda system, text: [*system, {"role": "user", "content": text}],
    st.just([]) | TEXT.map(lambda text: [{"role": "system", "content": text}]),
    TEXT,
)
MESSAGES = st.builds(lambda a, b: [*a, *b], OPENING, st.lists(ASKING | ANSWERING | CALLING | RESULT, max_size=6))


@given(MESSAGES, TOOLS)
def test_conversations_are_those_of_renderers(messages, tools):
    builder = build(LLAMA_3, messages, tools)
    oracle = Llama3Renderer(qwen.OracleTokenizer(LLAMA)).render(messages, tools=tools or None)
    assert (builder.tokens, builder.by_assistant) == (oracle.token_ids, oracle.sampled_mask)
    builder.open_assistant()
    oracle = Llama3Renderer(qwen.OracleTokenizer(LLAMA)).render(
        messages, tools=tools or None, add_generation_prompt=True
    )
    assert builder.tokens == oracle.token_ids


def test_the_special_tokens_choose_the_format():
    assert type(chat_format(byte_tokenizer(LLAMA))).__name__ == "LlamaChat"
    with refused("no chat format"):
        chat_format(byte_tokenizer(LLAMA[:3]))


@given(MESSAGES, TOOLS, st.integers(0, 7))
def test_a_resumed_conversation_goes_on_as_the_whole_one(messages, tools, cut):
    for at in (0, cut):
        check_resumed(LLAMA_3, messages, tools, at)


@given(MESSAGES, TOOLS, st.data())
def test_what_is_in_a_conversation_never_changes(messages, tools, data):
    builder = ChatBuilder(LLAMA_3, tools)
    for message in messages:
        if message["role"] == "tool":
            builder.open_assistant()
            builder.append_sampled(data.draw(st.lists(st.integers(0, 900), max_size=5)))
        before, marks = list(builder.tokens), list(builder.by_assistant)
        builder.add(message)
        assert builder.tokens[: len(before)] == before and builder.by_assistant[: len(before)] == marks


@given(ANSWERING | CALLING)
def test_what_the_builder_writes_is_read_back_as_renderers_does(message):
    builder = build(LLAMA_3, [{"role": "user", "content": "x"}, message])
    ids = [token for token, written in zip(builder.tokens, builder.by_assistant, strict=True) if written]
    parser = LLAMA_3.parser()
    events = [*parser.feed_ids(ids), *parser.end()]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    assert events[-1] == Finished("<|eot_id|>", "tool_calls" if calls else "stop") and not parser.problems
    assert parser.message["content"] == message["content"].strip()
    functions = [call["function"] for call in parser.message.get("tool_calls", ())]
    assert [(f["name"], json.loads(f["arguments"])) for f in functions] == [(f["name"], f["arguments"]) for f in calls]
    oracle = Llama3Renderer(qwen.OracleTokenizer(LLAMA)).parse_response(ids)
    assert parser.message["content"] == oracle.content.strip()
    assert [(f.name, f.arguments) for f in oracle.tool_calls or ()] == [(f["name"], f["arguments"]) for f in calls]


BITS = [
    *('{"name": "f", "parameters": {"a": 1}}', '{"name": "f", "param', 'eters": {', "}", '"', "\\", "é", "\n", " "),
    *('{"name": 3}', '{"name": "f"}', '{"a": 1}', ";", *LLAMA),
]
ANSWERS = st.lists(st.sampled_from(BITS) | st.text(max_size=3), max_size=8).map("".join)


@given(ANSWERS, st.data())
def test_any_answer_is_kept_whole_however_it_is_cut(text, data):
    parser = LlamaParser()
    events = [*parser.feed(text), *parser.end()]
    check(parser, events, text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    for ends in ([0, *cuts, len(text)], range(len(text) + 1)):
        other = LlamaParser()
        again = [event for a, b in itertools.pairwise(ends) for event in other.feed(text[a:b])] + other.end()
        assert joined(again) == joined(events)
        assert (other.message, other.problems) == (parser.message, parser.problems)
    parser = LLAMA_3.parser()
    check(parser, [*parser.feed_ids(qwen.special_ids(text, LLAMA)), *parser.end()], text)


@pytest.mark.parametrize(
    ("text", "calls", "content", "problems"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', [("f", '{"a": 1}')], "", []),
        (' {"name":"f","arguments":{}} ', [("f", "{}")], "", []),
        ('<|python_tag|>{"name": "f", "parameters": {}}<|eom_id|>', [("f", "{}")], "", []),
        ('{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', [("f", "{}")], "", [BAD_CALL]),
        ('{"name": "f", "parameters": {"a', [("f", '{"a')], "", [BAD_CALL, BAD_JSON]),
        ('{"name": "Ann", "age": 3}', [], '{"name": "Ann", "age": 3}', []),
        ('{"name": "f"', [], '{"name": "f"', []),
        ('So: {"name": "f", "parameters": {}}', [], 'So: {"name": "f", "parameters": {}}', []),
        ("a<|python_tag|>b", [], "ab", [NO_BEGIN]),
        ("a<|begin_of_text|>b", [], "ab", [STRAY_TOKEN]),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_an_answer_is_a_call_or_a_text(text, calls, content, problems):
    parser = LLAMA_3.parser()
    events = [*parser.feed_ids(qwen.special_ids(text, LLAMA)), *parser.end()]
    check(parser, events, text)
    functions = [each["function"] for each in parser.message.get("tool_calls", ())]
    assert [(f["name"], f["arguments"]) for f in functions] == calls
    assert (parser.message["content"], parser.problems) == (content, problems)


def test_a_text_is_held_back_only_while_it_may_be_a_call():
    assert all(may_begin_call('{"name": "f\\"", "parameters": '[:length]) for length in range(28))
    assert not any(
        map(may_begin_call, ("{a", '{"names', '{"name": 3', '{"name": "f", "x', "x", '{"name": "' + "f" * 600))
    )
    parser = LlamaParser()
    assert parser.feed('{"name": "f", ') == []
    assert [event.raw for event in parser.feed('"age"')] == ['{"name": "f", "age"']


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"content": "I look.", "tool_calls": [{"function": {"name": "f"}}]}, "a text beside calls"),
        ({"content": "", "tool_calls": [{"function": {"name": "f"}}] * 2}, "has 2 calls"),
        ({"content": "", "reasoning_content": "r"}, "reasoning"),
    ],
)
def test_what_the_format_has_no_place_for_is_refused(message, words):
    builder = build(LLAMA_3, [{"role": "user", "content": "x"}])
    with refused(words):
        builder.add({"role": "assistant", **message})


def test_tools_need_a_message_of_the_user_first():
    builder = ChatBuilder(LLAMA_3, [{"type": "function", "function": {"name": "f"}}])
    builder.add({"role": "system", "content": "x"})
    for act in (builder.open_assistant, lambda: builder.add({"role": "assistant", "content": "x"})):
        with refused("the user's first message declares the tools"):
            act()


@given(st.lists(st.sampled_from([*LLAMA, "x"]), max_size=4).map("".join))
def test_what_users_and_tools_write_never_makes_special_tokens(text):
    counts = []
    for written in (text, "x"):
        call = {"function": {"name": "f", "arguments": {written: written}}}
        messages = [
            {"role": "system", "content": written}, {"role": "user", "content": written},
            {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": written},
        ]  # fmt: skip
        builder = build(LLAMA_3, messages, [{"type": "function", "function": {"name": "f", "description": written}}])
        counts.append([i for i in builder.tokens if i >= len(kimi.ranks())])
    assert counts[0] == counts[1]


def test_ids_of_calls_are_counted_over_the_conversation():
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}
    builder = build(LLAMA_3, [{"role": "user", "content": "x"}, call, {"role": "tool", "content": "1"}])
    assert LLAMA_3.count_calls(builder.tokens) == 1
    parser = LLAMA_3.parser(calls_before=1)
    parser.feed('{"name": "f", "parameters": {}}')
    parser.end()
    assert parser.message["tool_calls"][0]["id"] == "functions.f:1"
