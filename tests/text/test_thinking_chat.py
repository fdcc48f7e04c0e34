"""Kimi K2.5's format, against the package renderers."""

from hypothesis import given
from hypothesis import strategies as st
import pytest
from renderers.configs import KimiK25RendererConfig
from renderers.kimi_k25 import KimiK25Renderer, _encode_tools_typescript

from k2jax.text import ChatBuilder, ToolCallParser, chat_format, render_history
from k2jax.text.tool_types import declare_functions
from tests.refusal import refused
from tests.text import kimi
from tests.text.test_chat import CALL, CALLS, TOOLS, with_arguments

THINK, ANSWER = "<think>", "</think>"


tokenizer = kimi.thinking_tokenizer
CHAT = chat_format(tokenizer())
TEXT = st.text(max_size=12) | st.sampled_from(["\n\n", " a", "月之暗面", "<|im_end|>"])
REASONING = st.sampled_from([{}]) | st.builds(lambda text: {"reasoning_content": text}, TEXT)
ASKING = st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "system"]), TEXT)
ANSWERING = st.builds(lambda text, more: {"role": "assistant", "content": text} | more, TEXT, REASONING)
CALLING = st.builds(lambda message, calls: message | {"tool_calls": calls}, ANSWERING, CALLS)
RESULT = st.builds(lambda text: {"role": "tool", "tool_call_id": "functions.f:0", "content": text}, TEXT)
MESSAGES = st.lists(ASKING | ANSWERING | CALLING | RESULT, min_size=1, max_size=7)


class OracleTokenizer:
    """What ``renderers`` asks of a tokenizer: markup in text is special to it."""

    unk_token_id = None

    def convert_tokens_to_ids(self, token):
        return tokenizer().special_id(token) if tokenizer().has_special(token) else None

    def encode(self, text, add_special_tokens=False):
        ids = []
        for i, part in enumerate(text.split(THINK)):
            ids += [tokenizer().special_id(THINK)] if i else []
            for j, rest in enumerate(part.split(ANSWER)):
                ids += [tokenizer().special_id(ANSWER)] if j else []
                ids += tokenizer().encode(rest)
        return ids

    def decode(self, ids, skip_special_tokens=False):
        return kimi.text_of(ids, tokenizer())


def renderer(thinking=True):
    return KimiK25Renderer(OracleTokenizer(), KimiK25RendererConfig(thinking=thinking))


@given(MESSAGES, st.sampled_from([None, TOOLS]), st.sampled_from([None, True, False]))
def test_histories_are_those_of_renderers(messages, tools, thinking):
    builder = render_history(CHAT, messages, tools)
    if thinking is not None:
        builder.open_assistant(thinking)
    oracle = renderer(thinking is not False).render(
        with_arguments(messages), tools=tools, add_generation_prompt=thinking is not None
    )
    expected = list(oracle.token_ids)
    assert kimi.text_of(builder.tokens, tokenizer()) == kimi.text_of(expected, tokenizer())
    # Heading and content of a tool's result are one text to us, two to the oracle.
    if all(message["role"] != "tool" for message in messages):
        assert builder.tokens == expected
        # The oracle counts the tags of the generation prompt as written by the model, which is given them.
        given_tags = {tokenizer().special_id(THINK), tokenizer().special_id(ANSWER)}
        for token, ours, theirs in zip(builder.tokens, builder.by_assistant, oracle.sampled_mask, strict=True):
            assert ours == theirs or (token in given_tags and theirs)


def test_the_format_to_the_letter():
    messages = [
        {"role": "user", "content": "weather?", "name": "Ann"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "call it", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": CALL["id"], "name": "get_weather", "content": "sunny"},
        {"role": "assistant", "content": "Sunny.", "reasoning_content": "say it"},
        {"role": "user", "content": "sure?"},
        {"role": "assistant", "content": "<think>\nhm</think>\nYes.", "tool_calls": [CALL]},
    ]
    texts = {}
    for strip in (True, False):
        builder = render_history(CHAT, messages, strip=strip)
        builder.open_assistant(thinking=strip)
        texts[strip] = kimi.text_of(builder.tokens, tokenizer())
    call = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
    )
    head = "<|im_assistant|>assistant<|im_middle|>"
    kept = (
        f"<|im_user|>Ann<|im_middle|>weather?<|im_end|>{head}<think>call it</think>I look.{call}"
        "<|im_system|>get_weather<|im_middle|>## Return of functions.get_weather:0\nsunny<|im_end|>"
        f"{head}<think>say it</think>Sunny.<|im_end|><|im_user|>user<|im_middle|>sure?<|im_end|>"
        f"{head}<think>\nhm</think>Yes.{call}{head}<think>"
    )
    assert texts[False] == f"{kept}</think>"
    assert texts[True] == kept.replace("call it", "").replace("say it", "")


def test_a_sampled_answer_with_reasoning_gives_the_tokens_of_a_written_one():
    text, end = tokenizer().encode, tokenizer().special_id(ANSWER)
    for thinking, sampled in ((True, [*text("hm"), end, *text("Yes.")]), (False, text("Yes."))):
        message = {"role": "assistant", "content": "Yes.", "reasoning_content": "hm" if thinking else ""}
        written, grown = ChatBuilder(CHAT), ChatBuilder(CHAT)
        for builder in (written, grown):
            builder.add({"role": "user", "content": "sure?"})
        written.add(message)
        grown.open_assistant(thinking)
        grown.append_sampled([*sampled, CHAT.end])
        assert (written.tokens, written.by_assistant) == (grown.tokens, grown.by_assistant)


@given(MESSAGES)
def test_stripping_is_a_branch_and_appending_keeps_all_reasoning(messages):
    builder, before = ChatBuilder(CHAT), []
    for message in messages:
        builder.add(message)
        assert builder.tokens[: len(before)] == before
        before = list(builder.tokens)
    assert before == render_history(CHAT, messages, strip=False).tokens


@given(TEXT)
def test_what_users_and_tools_write_never_makes_special_tokens(text):
    counts = []
    for content in (text + "<think>x</think>", "x"):
        builder = render_history(
            CHAT, [{"role": "user", "content": content}, {"role": "tool", "tool_call_id": content, "content": content}]
        )
        counts.append([i for i in builder.tokens if i >= len(kimi.ranks())])
    assert counts[0] == counts[1]


SCALARS = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "maxLength": 5, "minLength": 1, "pattern": "^a"},
        {"type": "integer", "minimum": 1, "description": "two\n\nlines"},
        {"type": "number", "maximum": 2.5, "default": 1.5},
        {"type": "boolean", "default": False},
        {"type": ["string", "null", "array", "object", "integer"], "description": "d"},
        {"enum": ["a", 'b"', 3, None, True], "default": "é"},
        {"$ref": "#/$defs/Leaf", "description": "a leaf"},
        {"$ref": "#"},
        {},
        True,
        False,
    ]
)


OTHERS = [True, False, {}, {"type": "string"}]
OBJECT_EXTRAS = st.sampled_from([{}, {"description": "o"}, *({"additionalProperties": kind} for kind in OTHERS)])


def deeper(inner):
    names = st.sampled_from(["b", "a", "city", "unit"])
    properties = st.dictionaries(names, inner, max_size=3)
    objects = st.builds(
        lambda properties, required, more: {"type": "object", "properties": properties, "required": required} | more,
        properties,
        st.lists(names, max_size=2),
        OBJECT_EXTRAS,
    )
    arrays = st.builds(lambda item: {"type": "array", "items": item, "minItems": 1, "description": "l"}, inner)
    either = st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=2))
    return objects | arrays | either | st.just({"type": "array"})


SCHEMAS = st.dictionaries(
    st.sampled_from(["z", "a", "m", "city"]), st.recursive(SCALARS, deeper, max_leaves=5), max_size=4
)


@given(SCHEMAS, st.lists(st.sampled_from(["z", "a"]), max_size=2), st.sampled_from([None, "", "does it\n\nwell"]))
def test_tools_are_declared_as_renderers_does(properties, required, description):
    leaf = {"type": "object", "properties": {"v": {"type": "integer"}}, "description": "leaf"}
    parameters = {"type": "object", "$defs": {"Leaf": leaf}, "properties": properties, "required": required}
    function = {"name": "f", "description": description, "parameters": parameters}
    tools = [{"type": "function", "function": function}, {"type": "_plugin"}, {"type": "function", "function": CALL}]
    assert declare_functions(tools) == _encode_tools_typescript(tools)


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"a": {"$ref": "#/$defs/None"}}},
        {"properties": {"a": {"kind": 3}}},
        {"properties": {"a": {"type": ["strange"]}}},
        {"properties": [1]},
        {"properties": {"a": 3}},
        "x",
    ],
)
def test_parameters_without_a_type_are_refused_in_one_line(parameters):
    with refused("the tool 'f' cannot be declared"):
        ChatBuilder(CHAT, [{"type": "function", "function": {"name": "f", "parameters": parameters}}])


def parsed(ids, thinking):
    parser = ToolCallParser(tokenizer(), thinking)
    parser.feed_ids(ids)
    parser.end()
    return parser


@given(ANSWERING | CALLING)
def test_what_the_builder_writes_is_read_back(message):
    builder = ChatBuilder(CHAT)
    builder.add(message)
    ids = [token for token, written in zip(builder.tokens, builder.by_assistant, strict=True) if written]
    reasoning = message.get("reasoning_content", "")
    parser = parsed(ids, thinking=bool(reasoning))
    assert parser.message["content"] == message["content"]
    assert parser.message.get("reasoning_content", "") == reasoning
    assert len(parser.message.get("tool_calls", ())) == len(message.get("tool_calls", ()))


WORDS = st.sampled_from(["a", "hm ", "<think>", "</think>", "Yes"])


@given(st.lists(st.sampled_from([THINK, ANSWER, "<|im_end|>", "<|tool_calls_section_begin|>"]) | WORDS, max_size=8))
def test_every_answer_is_read_and_nothing_of_it_is_lost(parts):
    ids = [i for part in parts for i in OracleTokenizer().encode(part)]
    for thinking in (True, False):
        parser = ToolCallParser(tokenizer(), thinking)
        events = parser.feed_ids(ids) + parser.end()
        assert "".join(event.raw for event in events) == kimi.text_of(ids, tokenizer())


@given(st.text("ab<>/", max_size=8), st.text("ab<>/", min_size=1, max_size=8), st.booleans())
def test_answers_are_divided_as_renderers_does(reasoning, text, closed):
    end = [tokenizer().special_id(ANSWER)] if closed else []
    ids = [*tokenizer().encode(reasoning), *end, *(tokenizer().encode(text) if closed else [])]
    oracle = renderer().parse_response([tokenizer().special_id(THINK), *ids, CHAT.end])
    for thinking, begin in ((True, []), (False, [tokenizer().special_id(THINK)])):
        message = parsed([*begin, *ids, CHAT.end], thinking).message
        assert message["content"] == (oracle.content or "")
        assert message.get("reasoning_content", "") == (oracle.reasoning_content or "")


def test_a_call_ends_the_reasoning_and_markup_of_reasoning_within_a_call_is_text():
    parts = [
        "hm",
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "functions.f:0",
        "<|tool_call_argument_begin|>",
    ]
    parts += ['{"a": "', THINK, '"}', "<|tool_call_end|>", "<|tool_calls_section_end|>", "<|im_end|>"]
    ids = []
    for part in parts:
        ids += [tokenizer().special_id(part)] if tokenizer().has_special(part) else tokenizer().encode(part)
    parser = parsed(ids, thinking=True)
    [call] = parser.message["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a": "<think>"}'}
    assert (parser.message["content"], parser.message["reasoning_content"], parser.problems) == ("", "hm", [])


def test_the_name_of_a_tag_in_an_answer_of_kimi_k2_is_text():
    parser = ToolCallParser(kimi.tokenizer())
    parser.feed_ids(kimi.tokenizer().encode("<think>x</think>"))
    parser.end()
    assert parser.message == {"role": "assistant", "content": "<think>x</think>"}
