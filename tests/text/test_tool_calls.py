import itertools

from hypothesis import given
from hypothesis import strategies as st
import pytest
from renderers.kimi_k2 import KimiK2Renderer
import tokenizers
from tokenizers import models

from k2jax.text import ChatBuilder, ToolCallParser, gguf_tokenizer, load_tokenizer
from k2jax.text.answers import (
    AFTER_END,
    BAD_JSON,
    NO_BEGIN,
    NO_END,
    NO_NAME,
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Finished,
    Markup,
)
from k2jax.text.tool_calls import INVALID_ID, NO_ARGUMENTS, NO_SECTION, NO_SECTION_END, NOT_A_CALL
from tests.refusal import refused
from tests.text import kimi
from tests.text.answers import check, joined
from tests.text.test_chat import CALLS, KIMI, TEXT, OracleTokenizer
from tests.text.test_gguf_vocabulary import small

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
MESSAGE_END = "<|im_end|>"
SINGULAR = ("<|tool_call_section_begin|>", "<|tool_call_section_end|>")
MARKS = [BEGIN, END, CALL, ARGUMENTS, CALL_END, MESSAGE_END, *SINGULAR]
BITS = [
    *MARKS,
    "functions.f:0",
    "f",
    ":",
    '{"a": 1}',
    "{",
    "<|",
    "<",
    "tool_call_begin|>",
    " ",
    "\n",
    "é",
    "月",
    "[EOS]",
]
ANSWERS = st.lists(st.sampled_from(BITS) | st.text(max_size=5), max_size=12).map("".join)
IDS = st.lists(
    st.sampled_from(sorted(kimi.special_tokens().values()))
    | st.integers(-3, len(kimi.ranks()) + 300)
    | st.integers(0, 255),  # parts of characters
    max_size=25,
) | ANSWERS.map(kimi.tokenizer().encode)


def parse(text, parser=None):
    parser = parser or ToolCallParser()
    return parser, [*parser.feed(text), *parser.end()]


@given(ANSWERS, st.data())
def test_any_text_is_kept_whole_however_it_is_cut(text, data):
    parser, events = parse(text)
    check(parser, events, text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    for ends in ([0, *cuts, len(text)], range(len(text) + 1)):
        other = ToolCallParser()
        pieces = [text[a:b] for a, b in itertools.pairwise(ends)]
        again = [event for piece in pieces for event in other.feed(piece)] + other.end()
        assert joined(again) == joined(events)
        assert (other.message, other.problems) == (parser.message, parser.problems)


@given(IDS, st.integers(0, 25))
def test_any_ids_are_kept_whole_however_they_are_cut(ids, cut):
    tokenizer = kimi.tokenizer()
    parser = ToolCallParser(tokenizer)
    events = parser.feed_ids(ids) + parser.end()
    # The tokenizer's own decoding, between special tokens.
    known = [i for i in ids if 0 <= i < tokenizer.vocab_size]
    runs = [(name, list(run)) for name, run in itertools.groupby(known, tokenizer.special_name)]
    text = "".join(tokenizer.decode(run) if name is None else name * len(run) for name, run in runs)
    check(parser, events, text)
    other = ToolCallParser(tokenizer)
    again = other.feed_ids(ids[:cut]) + other.feed_ids(ids[cut:]) + other.end()
    assert (again, other.message) == (events, parser.message)


@given(TEXT, CALLS)
def test_what_the_builder_writes_is_read_back(content, calls):
    builder = ChatBuilder(KIMI)
    builder.open_assistant()
    start = len(builder.tokens)
    written = ChatBuilder(KIMI)
    written.add({"role": "assistant", "content": content, "tool_calls": calls})
    ids = written.tokens[start:]
    parser = ToolCallParser(kimi.tokenizer())
    events = parser.feed_ids(ids) + parser.end()
    message = parser.message
    assert message["content"] == content
    assert [call["id"] for call in message["tool_calls"]] == [call["id"] for call in calls]
    assert [call["function"]["name"] for call in message["tool_calls"]] == [call["function"]["name"] for call in calls]
    assert set(parser.problems) <= {BAD_JSON}
    again = ChatBuilder(KIMI)
    again.add(message)
    assert again.tokens == written.tokens
    assert events[-1] == Finished(MESSAGE_END, "tool_calls")


@given(TEXT, CALLS, st.booleans())
def test_well_formed_and_cut_off_answers_are_read_as_renderers_does(content, calls, whole):
    parse_response = KimiK2Renderer(OracleTokenizer()).parse_response
    written = ChatBuilder(KIMI)
    written.add({"role": "system", "content": ""})
    head = len(written.tokens) + len(KIMI.generation_prompt)
    written.add({"role": "assistant", "content": content, "tool_calls": calls})
    ids = written.tokens[head:]
    ids = ids if whole else ids[:-3]  # the last call's end, the section's and the message's are missing
    oracle = parse_response(ids)
    parser = ToolCallParser(kimi.tokenizer())
    parser.feed_ids(ids)
    parser.end()
    message = parser.message
    assert message["content"].strip() == oracle.content
    assert len(message["tool_calls"]) == len(oracle.tool_calls)
    for call, expected in zip(message["tool_calls"], oracle.tool_calls, strict=True):
        assert (call["id"], call["function"]["name"]) == (expected.id, expected.name)
    assert (NO_END in parser.problems) is not whole


def call(call_id="functions.f:0", arguments="{}"):
    return f"{CALL}{call_id}{ARGUMENTS}{arguments}{CALL_END}"


def test_events_of_an_answer_as_it_arrives():
    parser = ToolCallParser()
    assert parser.feed("Let me look. <|tool_ca") == [Content("Let me look. ")]
    assert parser.feed("lls_section_begin|>\n<|tool_call_begin|>functions.f") == [Markup(BEGIN), Markup("\n")]
    start = CallStart(f"{CALL}functions.f:0{ARGUMENTS}", 0, "functions.f:0", "f")
    assert parser.feed(f':0{ARGUMENTS}{{"a"') == [start, CallArguments('{"a"', 0)]
    assert parser.feed(f": 1}}{CALL_END}") == [CallArguments(": 1}", 0), CallEnd(CALL_END, 0, '{"a": 1}', ())]
    assert parser.feed(END + MESSAGE_END) == [Markup(END), Finished(MESSAGE_END, "tool_calls")]
    assert parser.end() == []
    assert parser.problems == []
    assert parser.message == {
        "role": "assistant",
        "content": "Let me look. ",
        "tool_calls": [{"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }


@pytest.mark.parametrize("section", [(BEGIN, END), SINGULAR, (BEGIN, SINGULAR[1])])
def test_both_spellings_of_the_section_are_read(section):
    begin, end = section
    parser, _ = parse(f"x{begin}{call()}{call('functions.g.h:7')}{end}y")
    assert [c["function"]["name"] for c in parser.message["tool_calls"]] == ["f", "g.h"]
    assert parser.message["content"] == "xy"
    assert parser.problems == []


F = ("functions.f:0", "f")


@pytest.mark.parametrize(
    ("text", "calls", "problems"),
    [
        (f"{BEGIN}{call()}", [(*F, "{}")], [NO_SECTION_END]),
        (f"{BEGIN}{CALL}functions.f:0{ARGUMENTS}{{", [(*F, "{")], [NO_END, BAD_JSON, NO_SECTION_END]),
        (f"{BEGIN}{CALL}functions.f:0{ARGUMENTS}{{}}{END}", [(*F, "{}")], [NO_END]),
        (f"{BEGIN}{CALL}functions.f:0{ARGUMENTS}{{}}{call()}{END}", [(*F, "{}")] * 2, [NO_END]),
        (f"{BEGIN}{CALL}functions.f:0{{}}{CALL_END}{END}", [(*F, "{}")], [NO_ARGUMENTS]),
        (f"{BEGIN}{CALL}functions.f:0{CALL_END}{END}", [(*F, "")], [NO_ARGUMENTS, BAD_JSON]),
        (f"{BEGIN}{CALL}what?{CALL_END}{call()}{END}", [(*F, "{}")], [NO_NAME]),
        (f"{BEGIN}{CALL}{call()}{END}", [(*F, "{}")], [NO_NAME]),
        (f"{BEGIN}{CALL}", [], [NO_NAME, NO_SECTION_END]),
        (f"{BEGIN}{call(arguments='{a: 1}')}{END}", [(*F, "{a: 1}")], [BAD_JSON]),
        (f"{BEGIN}{call(arguments='[1]')}{END}", [(*F, "[1]")], [BAD_JSON]),
        (BEGIN + call(arguments='{"a": NaN}') + END, [(*F, '{"a": NaN}')], [BAD_JSON]),
        (f"{BEGIN}{call(arguments='[' * 100_000)}{END}", [(*F, "[" * 100_000)], [BAD_JSON]),
        (f"{BEGIN}{call(arguments='{}' + ARGUMENTS)}{END}", [(*F, "{}" + ARGUMENTS)], [BAD_JSON]),
        (f"{BEGIN}{call('functions.f')}{END}", [("functions.f", "f", "{}")], [INVALID_ID]),
        (f"{BEGIN}{call(' f:3 ')}{END}", [("f:3", "f", "{}")], []),
        (f"{BEGIN}{call('')}{END}", [("", "", "{}")], [INVALID_ID]),
        (f"{BEGIN}oh, {call()} and {ARGUMENTS}{END}", [(*F, "{}")], [NOT_A_CALL]),
        (call(), [(*F, "{}")], [NO_SECTION]),
        (f"a{END}b{CALL_END}c{ARGUMENTS}d", [], [NO_BEGIN]),
        (f"{MESSAGE_END}{BEGIN}{call()}{END}", [], [AFTER_END]),
        (f"{BEGIN}{CALL}functions.f:0{ARGUMENTS}{{}}{MESSAGE_END}", [(*F, "{}")], [NO_END, NO_SECTION_END]),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_malformed_answers_keep_their_calls_and_say_what_is_wrong(text, calls, problems):
    parser, events = parse(text)
    check(parser, events, text)
    got = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in parser.message.get("tool_calls", [])]
    assert (got, parser.problems) == (calls, problems)


def test_a_mark_quoted_in_ordinary_tokens_is_content():
    tokenizer = kimi.tokenizer()
    quoted = f"Calls begin with {CALL} in {BEGIN}."
    parser = ToolCallParser(tokenizer)
    parser.feed_ids(tokenizer.encode(quoted))
    parser.end()
    assert parser.message == {"role": "assistant", "content": quoted}
    # The singular section is no special token, so its spelling counts.
    parser = ToolCallParser(tokenizer)
    special = kimi.special_tokens()
    ids = [*tokenizer.encode(SINGULAR[0]), special[CALL], *tokenizer.encode("functions.f:0"), special[ARGUMENTS]]
    parser.feed_ids([*ids, *tokenizer.encode("{}"), special[CALL_END], *tokenizer.encode(SINGULAR[1])])
    parser.end()
    assert [c["id"] for c in parser.message["tool_calls"]] == ["functions.f:0"]
    assert parser.problems == []


def test_a_vocabulary_without_the_marks_reads_them_by_spelling():
    tokenizer = gguf_tokenizer(small())
    parser = ToolCallParser(tokenizer)
    parser.feed_ids(tokenizer.encode(f"x{BEGIN}{call()}{END}"))
    assert parser.feed_ids([tokenizer.eos]) == [Finished("<|im_end|>", "tool_calls")]
    assert parser.problems == []


def test_the_end_of_document_token_ends_an_answer():
    tokenizer = kimi.tokenizer()
    parser = ToolCallParser(tokenizer)
    assert parser.feed_ids([tokenizer.eos]) == [Finished("[EOS]", "stop")]


def test_ids_need_a_byte_level_tokenizer(tmp_path):
    backend = tokenizers.Tokenizer(models.Unigram([("<s>", 0.0), ("</s>", 0.0), ("a", -1.0)], unk_id=0))
    backend.save(str(tmp_path / "tokenizer.json"))
    with refused("not byte-level"):
        ToolCallParser(load_tokenizer(tmp_path))
    with pytest.raises(ValueError, match="need a tokenizer"):
        ToolCallParser().feed_ids([1])
