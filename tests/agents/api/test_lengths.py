"""Texts that are too long are refused before they are encoded, and no text that fits is."""

import random

from hypothesis import given, settings, strategies
import pytest

from k2jax.agents.api.api_error import ApiError
from k2jax.agents.api.lengths import check_text, check_texts
from tests.agents.api.sample import CARD, TOKENIZER

ALPHABETS = ["a", " ", "\n", "ab ", "月之", "🧑‍🚀", "0123456789", "The quick brown fox. ", "\t{};"]


@settings(max_examples=150)
@given(strategies.sampled_from(ALPHABETS), strategies.integers(1, 20_000), strategies.integers(0, 99))
def test_a_text_is_refused_only_if_it_does_not_fit(alphabet, length, seed):
    text = "".join(random.Random(seed).choices(alphabet, k=length)) if seed % 2 else (alphabet * length)[:length]
    tokens = len(TOKENIZER.encode(text))
    try:
        check_text("messages", text, CARD)
    except ApiError as error:
        assert error.status == 400 and error.code == "context_length_exceeded" and error.param == "messages"
        assert tokens >= CARD.max_length
        return
    assert len(text) <= 64 * CARD.max_length  # what is left to encode is bounded


class Counting:
    """A tokenizer that notes how long the texts are that it encodes."""

    def __init__(self):
        self.encoded = 0

    def encode(self, text):
        self.encoded += len(text)
        return TOKENIZER.encode(text)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "word " * 10_000},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "word " * 10_000}]},
        {"role": "assistant", "content": "", "reasoning_content": "word " * 10_000},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "word " * 10_000}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "word " * 10_000}}]},
        {"role": "assistant", "tool_calls": [{"id": "word " * 10_000, "function": {}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": {"a": "word " * 10_000}}}]},
        {"role": "tool", "content": "a", "tool_call_id": "word " * 10_000},
        {"role": "user", "content": ["\U0001f600" * CARD.max_length] * 5},
        {"role": "user", "content": [{"type": "text", "text": "word " * 60}] * 50},
        {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "\U0001f600" * 60}}] * 50},
    ],
)
def test_every_text_that_is_rendered_counts(message, monkeypatch):
    counting = Counting()
    monkeypatch.setitem(CARD.__dict__, "tokenizer", counting)
    with pytest.raises(ApiError, match="longest sequence"):
        check_texts([{"role": "user", "content": "Hi"}, message], ["messages[0]", "messages[1]"], [], CARD)
    assert counting.encoded <= 1 << 16


def test_what_is_malformed_is_left_to_whoever_reads_it():
    odd = [None, 3, [], {}, {"content": 3}, {"content": [3, {"text": 4}]}, {"tool_calls": [3, {"function": 4}]}]
    check_texts(odd, [f"messages[{i}]" for i in range(len(odd))], [], CARD)


def test_tools_are_refused_only_beyond_what_a_format_may_shorten():
    tools = [{"type": "function", "function": {"name": "f", "description": "word " * 100}}]
    check_texts([], [], tools, CARD)
    with pytest.raises(ApiError, match="longest sequence"):
        check_texts([], [], tools * 100, CARD)
