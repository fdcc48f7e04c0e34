from hypothesis import given
from hypothesis import strategies as st
import pytest

from k2jax.text import ChatBuilder, byte_tokenizer, configured_chat
from tests.refusal import refused
from tests.text import kimi

BYTES = byte_tokenizer()
PLAIN = configured_chat(BYTES, "plain")
TEXT = st.text(max_size=20) | st.sampled_from(["[EOS]", "[BOS]1+1=", ""])


@given(TEXT, TEXT)
def test_a_plain_conversation_is_the_document_of_both_texts_and_only_the_answer_is_the_assistants(question, answer):
    builder = ChatBuilder(PLAIN)
    builder.add({"role": "user", "content": question})
    builder.add({"role": "assistant", "content": answer})
    asked, answered = len(question.encode()), len(answer.encode())
    text = b"".join(map(BYTES.token_bytes, builder.tokens[1:-1]))
    assert text == (question + answer).encode() and len(builder.tokens) == 2 + asked + answered
    assert (builder.tokens[0], builder.tokens[-1]) == (BYTES.bos, BYTES.eos)
    assert builder.by_assistant == [False] * (1 + asked) + [True] * (answered + 1)


@given(TEXT, TEXT)
def test_a_sampled_plain_answer_gives_the_tokens_of_a_written_one(question, answer):
    sampled, written = ChatBuilder(PLAIN), ChatBuilder(PLAIN)
    for builder in (sampled, written):
        builder.add({"role": "user", "content": question})
    sampled.open_assistant()
    sampled.append_sampled([*BYTES.encode(answer), PLAIN.end])
    written.add({"role": "assistant", "content": answer})
    assert (sampled.tokens, sampled.by_assistant) == (written.tokens, written.by_assistant)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4))
def test_a_plain_conversation_of_several_turns_is_one_document_after_the_other(turns):
    whole, expected = ChatBuilder(PLAIN), []
    for question, answer in turns:
        one = ChatBuilder(PLAIN)
        for role, text in (("user", question), ("assistant", answer)):
            whole.add({"role": role, "content": text})
            one.add({"role": role, "content": text})
        expected += one.tokens
    assert whole.tokens == expected


@pytest.mark.parametrize(
    "roles",
    ["s", "a", "t", "uu", "ut", "uaa", "uauu"],  # initials
)
def test_questions_and_answers_alternate_and_a_refusal_leaves_no_trace(roles):
    builder = ChatBuilder(PLAIN)
    *others, last = ({"s": "system", "a": "assistant", "t": "tool", "u": "user"}[initial] for initial in roles)
    for role in others:
        builder.add({"role": role, "content": "x"})
    before = list(builder.tokens)
    with refused("the user asks and the assistant answers in turn"):
        builder.add({"role": last, "content": "x"})
    assert builder.tokens == before


def test_no_answer_is_opened_before_the_question():
    with refused("the user asks"):
        ChatBuilder(PLAIN).open_assistant()


def test_a_plain_conversation_has_no_tools():
    call = {"function": {"name": "f", "arguments": {}}}
    with refused("no tools"):
        ChatBuilder(PLAIN, [{"type": "function", "function": {"name": "f"}}])
    builder = ChatBuilder(PLAIN)
    builder.add({"role": "user", "content": "x"})
    with refused("no tools"):
        builder.add({"role": "assistant", "tool_calls": [call]})


def test_the_configured_format_is_the_vocabularys_unless_it_is_plain():
    assert type(configured_chat(kimi.tokenizer(), "auto")).__name__ == "KimiChat"
    assert type(configured_chat(kimi.tokenizer(), "plain")).__name__ == "PlainChat"
    with refused("no chat format"):
        configured_chat(BYTES, "auto")
