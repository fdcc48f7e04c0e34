"""Each field of a message in training data is used, or refuses its record by name."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
import pytest

from k2jax.config.schema import SourceConfig
from k2jax.data.build_shards import prepare_shards
from k2jax.data.chat_records import messages_and_tools
from k2jax.data.chat_rendering import branches, checked_branches
from k2jax.errors import UserError
from k2jax.text import byte_tokenizer, configured_chat, render_history
from k2jax.text.call_ids import with_call_ids
from k2jax.text.message_fields import read_message
from tests.data.corpora import asked, data_config, write_records
from tests.refusal import refused
from tests.text import kimi, test_chat, test_thinking_chat

KIMI, THINKING = test_chat.KIMI, test_thinking_chat.CHAT
USER = {"role": "user", "content": "u"}
FUNCTION = {"name": "get_weather", "arguments": "{}"}


def trained(record, chat=KIMI):
    """The texts that are trained, of all sequences, in order; special tokens by name."""
    parts = branches(*messages_and_tools(record), chat)
    tokenizer = kimi.tokenizer() if chat is KIMI else kimi.thinking_tokenizer()
    checked_branches(parts, chat, 1, 10_000, tokenizer)
    texts = []
    for part in parts:
        pairs = zip(part.tokens, part.by_assistant, strict=True)
        for is_trained, run in itertools.groupby(pairs, key=lambda pair: pair[1]):
            texts += [kimi.text_of([token for token, _ in run], tokenizer)] if is_trained else []
    return texts


def answered(**fields):
    return {"messages": [USER, {"role": "assistant", "content": "x", **fields}]}


def calling(call, *more):
    return {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, *more]}


CALL_TEXT = (
    "<|tool_calls_section_begin|><|tool_call_begin|>{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    "<|tool_calls_section_end|><|im_end|>"
)
REASONING = [
    {"reasoning_content": "R"},
    {"reasoning": "R"},
    {"thinking": "R"},
    {"reasoning_details": [{"type": "reasoning.text", "text": "R"}]},
    {"reasoning_details": [{"type": "reasoning.summary", "summary": "R"}], "reasoning": "R"},
    {"thinking_blocks": [{"type": "thinking", "thinking": "R", "signature": "s"}], "reasoning_content": "R"},
    {"content": [{"type": "thinking", "thinking": "R"}, {"type": "text", "text": "x"}]},
    {"content": [{"type": "reasoning", "text": "R"}, {"type": "text", "text": "x"}]},
    {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "R"}]}, "x"]},
    {"content": "<think>R</think>\n\nx"},
    {"content": [{"type": "text", "text": " <think>R</think>x"}]},
]


@pytest.mark.parametrize("fields", REASONING)
def test_reasoning_is_trained_under_every_name_and_refused_where_the_format_has_none(fields):
    assert trained(answered(**fields), THINKING) == ["R</think>x<|im_end|>"]
    if "think>" not in str(fields):  # what stands in the text is text to a format without reasoning
        with refused("reasoning"):
            trained(answered(**fields))


@pytest.mark.parametrize(
    "content",
    ["use </think> to close", "Print `<think>` then `</think>`.", "a<think>b</think>c", "</think>", " x </think>\n\ny"],
)
def test_tags_of_reasoning_within_an_answer_are_text(content):
    for written in (content, [{"type": "text", "text": content}]):
        assert trained(answered(content=written), THINKING) == [f"{content}<|im_end|>"]
        assert trained(answered(content=written)) == [f"{content}<|im_end|>"]
    history = [USER, {"role": "assistant", "content": content}, USER]
    tokens = render_history(THINKING, history).tokens
    assert f"<think></think>{content}<|im_end|>" in kimi.text_of(tokens, kimi.thinking_tokenizer())


def test_reasoning_that_is_stated_keeps_tags_in_the_text():
    content = "<think>a</think>b"
    assert trained(answered(content=content, reasoning_content=""), THINKING) == [f"{content}<|im_end|>"]


MARKS = [("weight", 0, 1), ("mask", True, False), ("masked", 1, 0)]
MARKS += [(name, False, True) for name in ("train", "training", "trainable", "loss")]


@pytest.mark.parametrize(("name", "no", "yes"), MARKS)
@pytest.mark.parametrize("chat", [KIMI, THINKING])
def test_a_message_that_is_marked_as_not_to_be_trained_is_context(name, no, yes, chat):
    first = {"role": "assistant", "content": "BAD", "reasoning_content": None}
    second = {"role": "assistant", "content": "good"}
    record = {"messages": [USER, first | {name: no}, USER, second | {name: yes}]}
    assert trained(record, chat) == ["good<|im_end|>"]
    [part] = branches(*messages_and_tools(record), chat)
    assert "BAD" in kimi.text_of(part.tokens, kimi.thinking_tokenizer())
    without = {"messages": record["messages"][:2]}
    with refused("nothing that the assistant wrote"):
        trained(without, chat)


def test_the_split_is_decided_by_the_first_answer_trained_or_not():
    digests = []
    for weight, thought in itertools.product((0, 1), ("", "R")):
        messages = answered(content="a", weight=weight, reasoning=thought)["messages"]
        record = {"messages": [*messages, USER, {"role": "assistant", "content": "b", "reasoning": "S"}]}
        parts = branches(*messages_and_tools(record), THINKING)
        assert len(parts) == 1 + weight
        rows = checked_branches(parts, THINKING, 1, 10_000, kimi.thinking_tokenizer())
        digests += [row.digest for row in rows]
    assert len(set(digests)) == 1


REFUSED = [
    ({"weight": 0.5}, "weight 0.5; a message is trained or not"),
    ({"weight": -1}, "weight -1"),
    ({"train": "no"}, "train 'no'"),
    ({"weight": 1, "train": False}, "disagree: weight, train"),
    ({"content": None}, r"messages\[1\] of the assistant is empty"),
    ({"content": ""}, "empty"),
    ({"content": " \n"}, "empty"),
    ({"content": []}, "empty"),
    ({"content": [{"type": "text", "text": ""}]}, "empty"),
    ({"conten": "y"}, r"messages\[1\] has the field 'conten'"),
    ({"audio": {"id": "a"}}, "field 'audio'"),
    ({"images": ["a.png"]}, "field 'images'"),
    ({"tool_call_id": "a"}, "field 'tool_call_id'"),
    ({"name": "Ann"}, "has a name"),
    ({"partial": True}, "only a server continues"),
    ({"prefix": "yes"}, "prefix must be true or false"),
    ({"refusal": "no"}, "content and a refusal"),
    ({"reasoning": 3}, "reasoning must be text"),
    ({"content": [{"type": "audio", "text": "y"}]}, "a part of type 'audio'"),
    ({"content": [{"type": "text", "text": "y", "train": False}]}, "field 'train'"),
    ({"content": [{"type": "text", "text": 3}]}, "a part of type 'text'"),
    ({"content": [{"image": "a.png", "text": "y"}]}, "a part without a type"),
    ({"content": {"text": "y"}}, "must be text or a list of parts"),
    ({"tool_calls": [{"name": "f"}]}, "needs a function with a name"),
    ({"tool_calls": [{"type": "custom", "function": FUNCTION}]}, "a call of type 'custom'"),
    ({"tool_calls": [{"function": FUNCTION, "result": "25"}]}, "field 'result'"),
    ({"tool_calls": [{"function": FUNCTION}], "function_call": FUNCTION}, "tool_calls and a function_call"),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED, ids=str)
def test_what_cannot_be_trained_as_it_says_refuses_the_record_by_name(fields, words):
    with refused(words):
        trained(answered(**fields))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"reasoning": "R", "thinking": "S"}, "different reasoning in reasoning and thinking"),
        ({"content": "", "reasoning": "R"}, "ends with its reasoning"),
        (
            {"content": [{"type": "thinking", "thinking": "R", "directions": True}, "y"], "reasoning": "R"},
            "in parts of its content and beside it",
        ),
        ({"content": "<think>R"}, "never closes it"),
        ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}, "reasoning that is no text"),
        ({"content": [{"type": "redacted_thinking", "data": "x"}, "y"]}, "redacted_thinking that is no text"),
    ],
)
def test_reasoning_that_cannot_be_read_refuses_the_record(fields, words):
    with refused(words):
        trained(answered(**fields), THINKING)


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "p", "completion": ""},
        {"messages": [USER, {"role": "assistant"}]},
        {"messages": [USER, {"role": "assistant", "content": "x"}, USER, {"role": "assistant", "content": ""}]},
    ],
)
def test_an_empty_answer_is_never_trained(record):
    for chat in (
        KIMI,
        THINKING,
        configured_chat(byte_tokenizer(), "plain"),
        configured_chat(byte_tokenizer(), "compact"),
    ):
        with refused("of the assistant is empty"):
            branches(*messages_and_tools(record), chat)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"system": "s"}, "role system"),
        ({"functions": [{}]}, "list the functions in tools"),
        ({"weight": 0}, "mark its messages"),
        ({"train_on_inputs": True}, "train_on_inputs, which is not read: mark messages"),
        ({"prompt": "p", "completion": "c"}, "messages and a prompt"),
        ({"images": ["a.png"]}, "image_chat"),
    ],
)
def test_fields_of_a_record_that_change_what_is_trained_are_refused(more, words):
    with refused(words):
        trained(answered() | more)


def test_other_fields_of_records_are_counted_and_said(tmp_path):
    records = [asked(f"q{n}", f"a{n}") | {"source": "web", "score": n % 2 or None} for n in range(10)]
    path = write_records(tmp_path / "a.jsonl", [*records, asked("q", "")])
    config = data_config(tmp_path / "cache", {"s": SourceConfig(kind="chat", path=path)}, chat_format="plain")
    lines = []
    manifest = prepare_shards("s", config, byte_tokenizer(), log=lines.append).manifest
    assert manifest["unread_fields"] == {"source": 10, "score": 5}
    assert "s: fields of records that are not read: source (10), score (5)" in lines
    assert (
        manifest["skipped"]["count"] == 1 and "messages[1] of the assistant is empty" in manifest["skipped"]["first"][0]
    )


@pytest.mark.parametrize("chat", [KIMI, THINKING])
@pytest.mark.parametrize("result", [{"tool_call_id": "call_1"}, {}, {"name": "get_weather"}])
def test_a_call_trains_the_name_of_its_function_and_its_result_names_the_call(chat, result):
    record = calling({"id": "call_1", "function": FUNCTION}, {"role": "tool", "content": "25", **result})
    assert trained(record, chat) == [CALL_TEXT.format("functions.get_weather:0")]
    [part] = branches(*messages_and_tools(record), chat)
    heading = f"{result.get('name', 'tool')}<|im_middle|>## Return of functions.get_weather:0\n25<|im_end|>"
    assert kimi.text_of(part.tokens, kimi.thinking_tokenizer()).endswith(heading)


def test_refusals_and_calls_in_the_older_form_are_trained():
    assert trained(answered(content=None, refusal="I cannot.")) == ["I cannot.<|im_end|>"]
    old = {"role": "assistant", "content": None, "function_call": FUNCTION}
    record = {"messages": [USER, old, {"role": "function", "name": "get_weather", "content": "25"}]}
    assert trained(record) == [CALL_TEXT.format("functions.get_weather:0")]


@pytest.mark.parametrize("arguments", ["", " ", None, {}, "{}"])
def test_blank_arguments_are_an_empty_object(arguments):
    record = calling({"id": "call_1", "function": {"name": "get_weather", "arguments": arguments}})
    assert trained(record) == [CALL_TEXT.format("functions.get_weather:0")]


def ids_of(*messages, **options):
    """Ids of the calls and results of a conversation: of a call (id, name), of a result its id."""
    read = []
    for message in messages:
        if isinstance(message, list):
            calls = [{"id": i, "function": {"name": name}} for i, name in message]
            read.append(read_message({"role": "assistant", "tool_calls": calls}, "here"))
        else:
            read.append(read_message({"role": "tool", **message}, "here"))
    changed = with_call_ids(read, ["here"] * len(read), **options)
    return [
        [call["id"] for call in message["tool_calls"]] if "tool_calls" in message else message.get("tool_call_id")
        for message in changed
    ]


def test_ids_are_numbered_over_the_conversation_and_those_in_the_form_stay():
    assert ids_of([("a", "f"), ("b", "g")], {"tool_call_id": "b"}, {"tool_call_id": "a"}, [("a", "f")]) == [
        ["functions.f:0", "functions.g:1"],
        "functions.g:1",
        "functions.f:0",
        ["functions.f:2"],
    ]
    assert ids_of([("functions.f:7", "f"), ("functions.f:1", "g")]) == [["functions.f:7", "functions.g:1"]]
    assert ids_of([("functions.f:1", "f"), ("x", "f"), (None, "f")]) == [
        ["functions.f:1", "functions.f:2", "functions.f:3"]
    ]
    assert ids_of([("x", "f"), ("y", "g")], {"name": "g"}, {}) == [
        ["functions.f:0", "functions.g:1"],
        "functions.g:1",
        "functions.f:0",
    ]
    assert ids_of([("x", "f")], {"tool_call_id": "x"}, sampled={0}) == [["x"], "x"]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"tool_call_id": "x"}], "answers the call 'x', and no such call"),
        ([{}], "answers a call, and no such call"),
        ([[("x", "f")], {"tool_call_id": "x"}, {"tool_call_id": "x"}], "no such call before it waits"),
        ([[("x", "f")], {"name": "g"}], "a call of 'g'"),
        ([[("x", "f")], {"tool_call_id": "x", "name": "g"}], "has the name 'g' and answers a call of 'f'"),
        ([[("x", "f"), ("x", "g")]], "the call id 'x' of another call"),
    ],
)
def test_results_that_belong_to_no_call_are_refused_or_reported(messages, words):
    with refused(words):
        ids_of(*messages)
    passed = []
    ids_of(*messages, passed=passed)
    assert len(passed) == ("another" not in words)


CALL_NAMES = ("tool_calls", "function_call", "function", "arguments", "tool_call_id", "id", "is_error")
REASONING_NAMES = ("text", "thinking", "reasoning", "reasoning_details", "thinking_blocks", "refusal")
NAMES = st.sampled_from(["role", "content", "name", "type", *CALL_NAMES, *REASONING_NAMES, "weight", "mask", "\ud800"])
SCALARS = st.none() | st.booleans() | st.integers(-1, 2) | st.floats() | st.text(max_size=3)
SCALARS |= st.sampled_from(["user", "assistant", "tool", "text", "thinking", "image", "f"])
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5))
ROLES = st.sampled_from(["user", "assistant", "tool", "function", "developer"])
ANYTHING = st.builds(lambda role, fields: fields | {"role": role}, ROLES, st.dictionaries(NAMES, JSON, max_size=5))


@given(st.lists(ANYTHING | JSON, max_size=4), st.sampled_from([KIMI, THINKING]))
def test_any_json_is_read_or_refused_in_one_line_and_reading_twice_changes_nothing(messages, chat):
    try:
        read, _ = messages_and_tools({"messages": messages})
        branches(read, None, chat)
    except UserError as error:
        assert "\n" not in str(error)
        return
    assert messages_and_tools({"messages": read})[0] == read


def test_what_another_role_wrote_is_never_trained():
    assert trained({"messages": [USER | {"weight": 1}, *answered()["messages"]]}) == ["x<|im_end|>"]
    with refused("only the assistant's are"):
        trained({"messages": [USER | {"train": True}, *answered()["messages"]]})
    with refused("needs a role"):
        trained({"messages": [{"role": "human", "content": "u"}]})
