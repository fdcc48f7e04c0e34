"""The formats of Qwen2.5 and Qwen3, against the package renderers and their published templates."""

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st
import jinja2
import numpy as np
import pytest
from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer

from k2jax.text import ChatBuilder, byte_tokenizer, chat_format
from k2jax.text.answers import BAD_JSON, NO_BEGIN, NO_END, NO_NAME, STRAY_TOKEN, Finished
from k2jax.text.hermes_calls import NO_CALL_ARGUMENTS, HermesParser
from k2jax.text.json_calls import BAD_CALL
from tests.refusal import refused
from tests.text import kimi, qwen
from tests.text.answers import check, joined
from tests.text.qwen import CHATML, HERMES, QWEN, QWEN3

TOKENIZER = qwen.tokenizer()
WORDS = st.sampled_from(["Hi", "天气", "a\n\nb", "<|im_end|>", "{}", " x ", "é", "</tools>"])
TEXT = st.lists(WORDS, max_size=3).map("".join)
VALUES = st.dictionaries(WORDS, st.integers() | WORDS | st.lists(st.booleans(), max_size=2), max_size=3)
FUNCTIONS = st.builds(lambda name, values: {"name": name, "arguments": values}, st.sampled_from(["f", "a.b"]), VALUES)
CALLS = st.lists(FUNCTIONS.map(lambda function: {"type": "function", "function": function}), min_size=1, max_size=3)
REASONING = st.sampled_from([{}]) | TEXT.map(lambda text: {"reasoning_content": text})
ASKING = st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "system"]), TEXT)
ANSWERING = st.builds(lambda text, more: {"role": "assistant", "content": text} | more, TEXT, REASONING)
CALLING = st.builds(lambda message, calls: message | {"tool_calls": calls}, ANSWERING, CALLS)
RESULT = TEXT.map(lambda text: {"role": "tool", "content": text})
MESSAGES = st.lists(ASKING | ANSWERING | CALLING | RESULT, min_size=1, max_size=7)
TOOLS = st.sampled_from(
    [[], [{"type": "function", "function": {"name": "f", "description": "天气", "parameters": {}}}]]
)


def build(chat, messages, tools=()):
    builder = ChatBuilder(chat, tools)
    for message in messages:
        builder.add(message)
    return builder


def without_reasoning(messages):
    return [{key: value for key, value in message.items() if key != "reasoning_content"} for message in messages]


@given(MESSAGES, TOOLS, st.booleans())
def test_histories_are_those_of_renderers(messages, tools, thinking):
    builder = build(QWEN, QWEN.as_history(messages, thinking), tools)
    builder.open_assistant(thinking)
    renderer = Qwen3Renderer(qwen.OracleTokenizer(), Qwen3RendererConfig(enable_thinking=thinking))
    oracle = renderer.render(messages, tools=tools, add_generation_prompt=True)
    assert kimi.text_of(builder.tokens, TOKENIZER) == kimi.text_of(oracle.token_ids, TOKENIZER)


TEMPLATE = """
{%- macro system(text) -%}{{ '<|im_start|>system\\n' + text + '<|im_end|>\\n' }}{%- endmacro %}
{%- set first = messages[0].content if messages[0].role == 'system' else none %}
{%- if tools %}
{{- '<|im_start|>system\\n' }}{% if first is not none %}{{- first + '\\n\\n' }}{% endif %}
{{- "# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
{{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- elif first is not none %}{{- system(first) }}{%- endif %}
{%- for message in messages %}
{%- if message.role == "user" or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- elif message.role == "assistant" %}
{{- '<|im_start|>' + message.role }}
{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
{%- for tool_call in message.tool_calls %}
{{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.function.name }}{{- '", "arguments": ' }}
{{- tool_call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif message.role == "tool" %}
{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}
"""  # noqa: E501, the words of Qwen2.5's template, without its default system message


@given(MESSAGES, TOOLS)
def test_qwen2_5_is_its_template(messages, tools):
    messages = without_reasoning(messages)
    builder = build(HERMES, messages, tools)
    builder.open_assistant()
    environment = jinja2.Environment()
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)  # as transformers has it
    expected = environment.from_string(TEMPLATE).render(messages=messages, tools=tools)
    assert kimi.text_of(builder.tokens, qwen.tokenizer((*CHATML, *qwen.TOOLS))) == expected


def test_the_special_tokens_choose_the_format():
    names = [type(chat_format(byte_tokenizer(names))).__name__ for names in (QWEN3, (*CHATML, *qwen.TOOLS), CHATML)]
    assert names == ["QwenChat", "HermesChat", "ChatML"]
    assert type(chat_format(byte_tokenizer((*CHATML, *qwen.TOOLS, "<think>", "</think>")))).__name__ == "QwenChat"


@given(st.sampled_from([QWEN, HERMES]), TOOLS, st.data())
def test_what_is_in_a_conversation_never_changes(chat, tools, data):
    """Also where sampled answers are between written messages, and results are added one by one."""
    builder = ChatBuilder(chat, tools)
    for message in data.draw(MESSAGES):
        if data.draw(st.booleans()):
            builder.open_assistant(data.draw(st.booleans()))
            before = list(builder.tokens)
            sampled = data.draw(st.lists(st.integers(0, 900), max_size=5))
            builder.append_sampled(sampled)
            assert builder.tokens == before + sampled
        before, marks = list(builder.tokens), list(builder.by_assistant)
        builder.add(message if chat is QWEN else without_reasoning([message])[0])
        assert builder.tokens[: len(before)] == before and builder.by_assistant[: len(before)] == marks
        assert len(builder.tokens) == len(builder.by_assistant) > len(before)


@given(st.sampled_from([QWEN, HERMES]), MESSAGES, TOOLS, st.integers(0, 7))
def test_a_resumed_conversation_goes_on_as_the_whole_one(chat, messages, tools, cut):
    messages = messages if chat is QWEN else without_reasoning(messages)
    for at in (0, cut):
        check_resumed(chat, messages, tools, at)


def check_resumed(chat, messages, tools, cut):
    whole, known = build(chat, messages, tools), build(chat, messages[:cut], tools)
    roles = [message["role"] for message in messages[:cut]]
    resumed = ChatBuilder.resume(chat, known.tokens, roles, False, known.by_assistant, tools=tools)
    for message in messages[cut:]:
        resumed.add(message)
    assert (resumed.tokens, resumed.by_assistant) == (whole.tokens, whole.by_assistant)
    ids = np.array(known.tokens, np.int32)
    apart = ChatBuilder.resume(chat, ids, roles, False, tools=tools, leaves_out=True)
    for message in messages[cut:]:
        apart.add(message)
    assert (apart.tokens, apart.by_assistant) == (whole.tokens[len(ids) :], whole.by_assistant[len(ids) :])
    assert chat.count_calls(np.array(whole.tokens, np.int32)) == chat.count_calls(whole.tokens)


@given(st.sampled_from([QWEN, HERMES]), ANSWERING | CALLING)
def test_a_sampled_answer_gives_the_tokens_of_a_written_one(chat, message):
    message = message if chat is QWEN else without_reasoning([message])[0]
    asked = [{"role": "user", "content": "x"}]
    written, grown = build(chat, asked), build(chat, asked)
    written.add(message)
    start = len(grown.tokens) + len(chat.answer_prompt(message))
    grown.open_assistant(thinking=chat.answer_prompt(message) == chat.generation_prompt)
    grown.append_sampled(written.tokens[start : written.tokens.index(chat.end, start) + 1])
    grown.add(asked[0])
    written.add(asked[0])
    assert (written.tokens, written.by_assistant) == (grown.tokens, grown.by_assistant)


def parsed(ids):
    parser = QWEN.parser()
    events = [*parser.feed_ids(ids), *parser.end()]
    return parser, events


@given(ANSWERING | CALLING)
def test_what_the_builder_writes_is_read_back_as_renderers_does(message):
    builder = build(QWEN, [{"role": "user", "content": "x"}, message])
    ids = [token for token, written in zip(builder.tokens, builder.by_assistant, strict=True) if written]
    parser, events = parsed(ids)
    assert joined(events)[-1] == Finished("<|im_end|>", "tool_calls" if "tool_calls" in parser.message else "stop")
    reasoning, calls = message.get("reasoning_content", ""), message.get("tool_calls", ())
    assert parser.message["content"] == message["content"].lstrip("\n")
    assert parser.message.get("reasoning_content", "") == reasoning.strip("\n")
    functions = [call["function"] for call in parser.message.get("tool_calls", ())]
    assert [(f["name"], json.loads(f["arguments"])) for f in functions] == [
        (call["function"]["name"], call["function"]["arguments"]) for call in calls
    ]
    assert not parser.problems
    oracle = Qwen3Renderer(qwen.OracleTokenizer()).parse_response(ids)
    assert parser.message["content"].strip() == oracle.content.strip()
    assert parser.message.get("reasoning_content", "").strip() == (oracle.reasoning_content or "")
    assert [(f["name"], json.loads(f["arguments"])) for f in functions] == [
        (call.name, call.arguments) for call in oracle.tool_calls or ()
    ]


BITS = [
    *(*QWEN3, "\n", "\n\n", " ", '{"name": "f", "arguments": {"a": 1}}', '{"name": "f", "argu', 'ments": {', "}", "é"),
    *('"', "\\", '{"arguments": [1], "name": "g"}', '{"name": 3}', '{"name": "f"}', ",", "月"),
]
ANSWERS = st.lists(st.sampled_from(BITS) | st.text(max_size=3), max_size=12).map("".join)
IDS = st.lists(st.sampled_from(BITS), max_size=12).map(
    lambda bits: [i for bit in bits for i in ([TOKENIZER.special_id(bit)] if bit in QWEN3 else TOKENIZER.encode(bit))]
) | st.lists(st.integers(-3, TOKENIZER.vocab_size + 5), max_size=25)


@given(ANSWERS, st.data())
def test_any_text_is_kept_whole_however_it_is_cut(text, data):
    parser = HermesParser()
    events = [*parser.feed(text), *parser.end()]
    check(parser, events, text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    for ends in ([0, *cuts, len(text)], range(len(text) + 1)):
        other = HermesParser()
        again = [event for a, b in itertools.pairwise(ends) for event in other.feed(text[a:b])] + other.end()
        assert joined(again) == joined(events)
        assert (other.message, other.problems) == (parser.message, parser.problems)


@given(IDS)
def test_any_ids_are_kept_whole(ids):
    for shows_all in (True, False):
        parser = QWEN.parser(shows_all=shows_all)
        events = [*parser.feed_ids(ids), *parser.end()]
        size = TOKENIZER.vocab_size
        names = [TOKENIZER.special_name(i) for i in ids if 0 <= i < size]
        runs = itertools.groupby(zip(names, (i for i in ids if 0 <= i < size), strict=True), lambda pair: pair[0])
        text = "".join(
            TOKENIZER.decode([i for _, i in run]) if name is None else name * len([*run]) for name, run in runs
        )
        check(parser, events, text)


def call(body, end="</tool_call>"):
    return f"<tool_call>{body}{end}"


@pytest.mark.parametrize(
    ("text", "calls", "content", "problems"),
    [
        (call('\n{"name": "f", "arguments": {}}\n'), [("f", "{}")], "", []),
        (call('{"name":"f","arguments":{"a":"}"}}'), [("f", '{"a":"}"}')], "", []),
        (call('{"name": "f", "parameters": {}}'), [("f", "{}")], "", []),
        (call('{"name": "f", "arguments": {"a": "\\"}"}}'), [("f", '{"a": "\\"}"}')], "", []),
        (call('{"arguments": {"a": [1, "]"]}, "name": "f"}'), [("f", '{"a": [1, "]"]}')], "", []),
        (call('{"id": 1, "name": "f", "arguments": {}}'), [("f", "{}")], "", []),
        (call('{"name": "f", "arguments": {}, "id": 1}'), [("f", "{}")], "", []),
        (call('{"name": "f"}'), [("f", "")], "", [NO_CALL_ARGUMENTS, BAD_JSON]),
        (call('{"name": "f", "arguments": [1]}'), [("f", "[1]")], "", [BAD_JSON]),
        (call('{"name": "f", "arguments": {"a": 1}'), [("f", '{"a": 1}')], "", [BAD_CALL]),
        (call('{"name": "f", "arguments": {}}}'), [("f", "{}")], "", [BAD_CALL]),
        (call('{"name": "f", "arguments": {"a', ""), [("f", '{"a')], "", [NO_END, BAD_CALL, BAD_JSON]),
        (call('{"name": 3, "arguments": {}}'), [], "", [NO_NAME]),
        (call('{"name": "", "arguments": {}}'), [], "", [NO_NAME]),
        (call("oh"), [], "", [NO_NAME]),
        (call("", ""), [], "", [NO_NAME]),
        (call('{"name": "f", "arguments": {}}') + "\n" + call('{"name": "g", "arguments": 1}'),
         [("f", "{}"), ("g", "1")], "", [BAD_JSON]),
        ("a\n\n" + call('{"name": "f", "arguments": {}}') + " \n b\n", [("f", "{}")], "a\nb\n", []),
        ("a</tool_call>b\n", [], "ab\n", [NO_BEGIN]),
        ("<think>\nr\n\ns\n</think>\n\nx\n", [], "x\n", []),
        ("<think>\nr" + call('{"name": "f", "arguments": {}}'), [("f", "{}")], "", []),
        ("x<think>y", [], "xy", [NO_BEGIN]),
        ("x<tool_response>y", [], "xy", [STRAY_TOKEN]),
        ("x<|im_start|>user\n", [], "x", ["text after the end of the message"]),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)  # fmt: skip
def test_malformed_answers_keep_their_calls_and_say_what_is_wrong(text, calls, content, problems):
    parser, events = parsed(qwen.special_ids(text))
    check(parser, events, text)
    functions = [each["function"] for each in parser.message.get("tool_calls", ())]
    assert [(f["name"], f["arguments"]) for f in functions] == calls
    assert (parser.message["content"], parser.problems) == (content, problems)


def test_ids_of_calls_are_counted_over_the_conversation():
    tools = [{"type": "function", "function": {"name": "f"}}]  # whose declaration shows the tokens of a call
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}] * 2}
    builder = build(QWEN, [{"role": "user", "content": "x"}, message, {"role": "tool", "content": "1"}], tools)
    builder.open_assistant()
    assert QWEN.count_calls(builder.tokens) == 2
    parser = QWEN.parser(calls_before=QWEN.count_calls(builder.tokens))
    parser.feed(call('{"name": "f", "arguments": {}}'))
    parser.feed_ids(qwen.special_ids(call('{"name": "f", "arguments": {}}')))
    assert [each["id"] for each in parser.message["tool_calls"]] == ["functions.f:2"]


def test_arguments_arrive_while_they_are_written():
    parser = HermesParser()
    assert parser.feed('Look.\n<tool_call>\n{"name": "f", "argu')[0].raw == "Look."
    pieces = ['ments": {"a": ', '"b}', '"}', "}", "\n</tool_call>"]
    assert [[event.raw for event in parser.feed(piece)] for piece in pieces] == [
        ['\n<tool_call>\n{"name": "f", "arguments": ', '{"a": '], ['"b}'], ['"}'], [], ["}\n</tool_call>"],
    ]  # fmt: skip


def test_a_name_with_quotes_stays_one():
    builder = build(HERMES, [{"role": "assistant", "tool_calls": [{"function": {"name": 'f"\\', "arguments": {}}}]}])
    parser = HERMES.parser()
    parser.feed_ids(builder.tokens[len(HERMES.generation_prompt) :])
    assert parser.message["tool_calls"][0]["function"] == {"name": 'f"\\', "arguments": "{}"}


def test_a_name_that_is_too_long_to_wait_for_is_read_at_the_end_of_the_call():
    parser, name = HermesParser(), "f" * 2000
    parser.feed('<tool_call>{"name": "')
    for _ in range(2000):
        parser.feed("f")
    parser.feed('", "arguments": {"a": "' + "[" * 100_000 + '"}}</tool_call>')
    assert parser.message["tool_calls"][0]["function"]["name"] == name and not parser.problems


@given(st.sampled_from([QWEN, HERMES]), st.lists(st.sampled_from([*QWEN3, "x"]), max_size=4).map("".join))
def test_what_users_and_tools_write_never_makes_special_tokens(chat, text):
    counts = []
    for written in (text, "x"):
        call = {"function": {"name": "f", "arguments": {written: written}}}
        messages = [
            {"role": "system", "content": written}, {"role": "user", "content": written},
            {"role": "assistant", "content": "a" + written, "tool_calls": [call]},
            {"role": "tool", "content": written}, {"role": "tool", "content": written},
        ]  # fmt: skip
        builder = build(chat, messages, [{"type": "function", "function": {"name": "f", "description": written}}])
        counts.append([i for i in builder.tokens if i >= len(kimi.ranks())])
    assert counts[0] == counts[1]


def test_an_answer_that_is_begun_is_continued():
    for message, head in (({}, "<think>\n\n</think>\n\n"), ({"reasoning_content": "R"}, "<think>\nR\n</think>\n\n")):
        builder = build(QWEN, [{"role": "user", "content": "x"}])
        builder.open_with({"role": "assistant", "content": '{"a":', **message})
        assert kimi.text_of(builder.tokens, TOKENIZER).endswith(f'<|im_start|>assistant\n{head}{{"a":')


def test_tools_that_are_no_json_are_refused():
    with refused("must be JSON values"):
        ChatBuilder(QWEN, [{"function": {1, 2}}])
