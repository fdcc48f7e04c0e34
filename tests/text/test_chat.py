import json

from hypothesis import given
from hypothesis import strategies as st
import jinja2
import pytest
from renderers.kimi_k2 import KimiK2Renderer

from k2jax.text import ChatBuilder, byte_tokenizer, chat_format, gguf_tokenizer
from tests.refusal import refused
from tests.text import kimi
from tests.text.test_gguf_vocabulary import small, smollm_metadata

KIMI = chat_format(kimi.tokenizer())
CHATML = chat_format(gguf_tokenizer(small()))
CALL = {"id": "functions.get_weather:0", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "天气", "parameters": {"b": 1, "a": []}}}
]
TEXT = st.text(max_size=20) | st.sampled_from(
    ["<|im_end|>", "<|tool_calls_section_begin|>[EOS]", "\n\n", " a", "月之暗面"]
)
CONTENT = TEXT | st.lists(st.builds(lambda text: {"type": "text", "text": text}, TEXT), max_size=3) | st.none()
NAME = st.sampled_from(["get_weather", "search", "a.b"])
ARGUMENTS = TEXT | st.dictionaries(TEXT, st.integers() | TEXT | st.lists(st.booleans()), max_size=3)
CALLS = st.lists(
    st.builds(
        lambda name, i, arguments: {
            "id": f"functions.{name}:{i}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        },
        NAME,
        st.integers(0, 12),
        ARGUMENTS,
    ),
    min_size=1,
    max_size=3,
)
ROLES = st.sampled_from(["user", "assistant"])
PLAIN = st.builds(lambda role, content: {"role": role, "content": content}, ROLES, CONTENT)
CALLING = st.builds(lambda message, calls: message | {"role": "assistant", "tool_calls": calls}, PLAIN, CALLS)
RESULT = st.builds(
    lambda name, i, content, more: {"role": "tool", "tool_call_id": f"functions.{name}:{i}", "content": content} | more,
    NAME,
    st.integers(0, 12),
    CONTENT,
    st.just({}) | st.builds(lambda name: {"name": name}, NAME),
)
SYSTEM = st.builds(lambda content: {"role": "system", "content": content}, CONTENT)
MESSAGES = st.lists(PLAIN | CALLING | RESULT | SYSTEM, min_size=1, max_size=6)
CHATML_MESSAGES = st.lists(PLAIN | SYSTEM, min_size=1, max_size=6)


def build(chat, messages, tools=None):
    builder = ChatBuilder(chat, tools)
    for message in messages:
        builder.add(message)
    return builder


class OracleTokenizer:
    """What ``renderers`` asks of a tokenizer, over the small vocabulary."""

    unk_token_id = None

    def convert_tokens_to_ids(self, token):
        return kimi.special_tokens().get(token)

    def encode(self, text, add_special_tokens=False):
        return kimi.tokenizer().encode(text)

    def decode(self, ids, skip_special_tokens=False):
        return kimi.tokenizer().decode(ids)


def with_arguments(messages):
    """The messages, in which blank arguments of calls are ``{}``, as they are to every client."""
    stated = []
    for message in messages:
        calls = [
            call | {"function": call["function"] | {"arguments": "{}"}}
            if isinstance(call["function"]["arguments"], str) and not call["function"]["arguments"].strip()
            else call
            for call in message.get("tool_calls", ())
        ]
        stated.append(message | ({"tool_calls": calls} if calls else {}))
    return stated


def rendered(messages, tools, prompt):
    messages = with_arguments(messages)
    renderer = KimiK2Renderer(OracleTokenizer())
    return renderer.render(messages, tools=tools, add_generation_prompt=prompt)


def default_system():
    special, text = kimi.special_tokens(), kimi.tokenizer().encode
    head = [special["<|im_system|>"], *text("system"), special["<|im_middle|>"]]
    return [*head, *text("You are Kimi, an AI assistant created by Moonshot AI."), special["<|im_end|>"]]


@given(MESSAGES, st.sampled_from([None, TOOLS]), st.booleans())
def test_kimi_conversations_are_those_of_renderers(messages, tools, prompt):
    builder = build(KIMI, messages, tools)
    if prompt:
        builder.open_assistant()
    oracle = rendered(messages, tools, prompt)
    expected, mask = list(oracle.token_ids), list(oracle.sampled_mask)
    if messages[0]["role"] != "system":
        # The release's template breaks the line after its own system text, an accident of its layout; we do not.
        (line_break,) = kimi.tokenizer().encode("\n")
        at = next(i for i in range(len(expected)) if expected[i : i + len(default_system())] == default_system())
        at += len(default_system())
        assert expected[at] == line_break
        del expected[at], mask[at]
    # Heading and content of a tool's result are one text to us, two to the oracle: pieces differ, the text does not.
    assert kimi.text_of(builder.tokens) == kimi.text_of(expected)
    if all(message["role"] != "tool" for message in messages):
        assert builder.tokens == expected
        assert builder.by_assistant == mask


def test_calls_without_an_id_are_counted_over_the_conversation():
    unnamed = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    builder = ChatBuilder(KIMI)
    builder.open_assistant()
    builder.append_sampled([kimi.special_tokens()["<|tool_call_begin|>"], kimi.special_tokens()["<|im_end|>"]])
    builder.add(unnamed)
    builder.add(unnamed)
    text = kimi.text_of(builder.tokens)
    assert "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>" in text
    assert "functions.f:1<" in text and "functions.f:2<" in text and "functions.f:0<" not in text


@given(st.sampled_from([(KIMI, MESSAGES), (CHATML, CHATML_MESSAGES)]), st.data())
def test_what_is_in_a_conversation_never_changes(case, data):
    chat, messages = case
    builder = ChatBuilder(chat, TOOLS if chat is KIMI else None)
    for message in data.draw(messages):
        if data.draw(st.booleans()):
            builder.open_assistant()
            before = list(builder.tokens)
            sampled = data.draw(st.lists(st.integers(0, 900), max_size=5))
            builder.append_sampled(sampled)
            assert builder.tokens == before + sampled
        before, mask = list(builder.tokens), list(builder.by_assistant)
        builder.add(message)
        assert builder.tokens[: len(before)] == before
        assert builder.by_assistant[: len(before)] == mask
        assert len(builder.tokens) == len(builder.by_assistant) > len(before)


@given(st.lists(st.sampled_from(list(kimi.special_tokens())), min_size=1).map("".join))
def test_content_never_makes_special_tokens(text):
    calls = [{"id": text, "function": {"name": text, "arguments": text}}]
    plain = [
        {"role": "user", "content": text},
        {"role": "tool", "tool_call_id": text, "name": text, "content": text},
        {"role": "assistant", "content": text, "tool_calls": calls},
    ]
    blank = json.loads(json.dumps(plain).replace(json.dumps(text)[1:-1], "x"))
    specials = [
        [i for i in build(KIMI, messages, [{"function": {"name": name}}]).tokens if i >= len(kimi.ranks())]
        for messages, name in ((plain, text), (blank, "x"))
    ]
    assert specials[0] == specials[1]


@pytest.mark.parametrize("chat", [KIMI, CHATML])
def test_a_sampled_message_is_ended_once(chat):
    text = [7, 8]
    for sampled in (text, [*text, chat.end]):
        builder = ChatBuilder(chat)
        builder.add({"role": "user", "content": "x"})
        builder.open_assistant()
        start = len(builder.tokens)
        builder.append_sampled(sampled[:1])
        builder.append_sampled(sampled[1:])
        builder.add({"role": "user", "content": "y"})
        after = [*text, chat.end, *chat.after_end]
        assert builder.tokens[start : start + len(after)] == after
        # The end is the assistant's only when it sampled it.
        written = len(sampled)
        assert builder.by_assistant[start:] == [True] * written + [False] * (len(builder.tokens) - start - written)


def test_sampling_needs_an_open_message():
    builder = build(KIMI, [{"role": "user", "content": "x"}])
    with pytest.raises(ValueError, match="open_assistant"):
        builder.append_sampled([1])


@given(CHATML_MESSAGES, st.booleans())
def test_chatml_to_the_letter(messages, prompt):
    builder = build(CHATML, messages)
    if prompt:
        builder.open_assistant()
    texts = []
    for message in messages:
        content = message["content"] or ""
        content = content if isinstance(content, str) else "".join(part["text"] for part in content)
        texts.append(f"<|im_start|>{message['role']}\n{content}<|im_end|>\n")
    expected = "".join(texts) + "<|im_start|>assistant\n" * prompt
    assert kimi.text_of(builder.tokens, gguf_tokenizer(small())) == expected


def test_smollm2_conversations_are_those_of_its_template():
    metadata = smollm_metadata()
    tokenizer = gguf_tokenizer(metadata)
    template = jinja2.Template(metadata["tokenizer.chat_template"])
    default = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    for messages in (
        [{"role": "user", "content": "What's 2+2?"}],
        [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Hi"}],
        [{"role": role, "content": f"{role} é\n\n1"} for role in ("user", "assistant", "user")],
    ):
        begun = [] if messages[0]["role"] == "system" else [{"role": "system", "content": default}]
        builder = build(chat_format(tokenizer), begun + messages)
        builder.open_assistant()
        expected = template.render(messages=messages, add_generation_prompt=True)
        assert kimi.text_of(builder.tokens, tokenizer) == expected
        marks = {tokenizer.special_id("<|im_start|>"), tokenizer.special_id("<|im_end|>")}
        assert sum(i in marks for i in builder.tokens) == expected.count("<|im_")


def test_the_special_tokens_choose_the_format():
    formats = [KIMI, CHATML, chat_format(kimi.thinking_tokenizer())]
    assert [type(chat).__name__ for chat in formats] == ["KimiChat", "ChatML", "KimiThinkingChat"]
    assert [chat.thinks for chat in formats] == [False, False, True]
    assert KIMI.end == kimi.special_tokens()["<|im_end|>"] and CHATML.end == 2
    with refused("no chat format"):
        chat_format(byte_tokenizer())


def test_a_missing_special_token_names_its_neighbours():
    with refused(r"no special token <\|im_usr\|>; did you mean <\|im_user\|>"):
        kimi.tokenizer().special_id("<|im_usr|>")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("hello", "needs a role"),
        ({"content": "x"}, "needs a role"),
        ({"role": "wizard", "content": "x"}, "needs a role"),
        ({"role": "user", "content": 3}, "content must be text"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "content must be text"),
        ({"role": "user", "content": "\ud800"}, "surrogate"),
        ({"role": "assistant", "tool_calls": CALL}, "must be a list"),
        ({"role": "assistant", "tool_calls": ["f"]}, "function with a name"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": 3}}]}, "function with a name"),
        ({"role": "assistant", "tool_calls": [CALL | {"id": 3}]}, "id of a chat message must be text"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": {1}}}}]}, "JSON values"),
        ({"role": "tool", "name": 3, "content": ""}, "name of a chat message must be text"),
    ],
)
def test_a_malformed_message_is_refused_and_leaves_no_trace(message, reason):
    builder = ChatBuilder(KIMI)
    builder.open_assistant()
    before = list(builder.tokens)
    with refused(reason):
        builder.add(message)
    assert builder.tokens == before


@pytest.mark.parametrize("message", [{"role": "tool", "content": "x"}, {"role": "assistant", "tool_calls": [CALL]}])
def test_chatml_has_no_tools(message):
    with refused("no tools"):
        ChatBuilder(CHATML).add(message)
    with refused("no tools"):
        ChatBuilder(CHATML, TOOLS)
