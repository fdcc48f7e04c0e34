"""Sampled ids as messages, for verifiers, environments and readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from k2jax.text.chat import ChatFormat
from k2jax.text.compact_chat import CompactChat, visible_text
from k2jax.text.tokenizer import Tokenizer
from k2jax.text.tool_calls import ToolCallParser


def read_message(tokenizer: Tokenizer, chat: ChatFormat, ids: Sequence[int], thinking: bool = True) -> dict[str, Any]:
    """Sampled ids as an assistant's message in OpenAI's format.

    The end of the message is left out. Other special tokens are written by name, so that no token is invisible to a
    verifier; tool calls, and the reasoning that the prompt of a thinking model opens, are parsed where the vocabulary
    has them. With ``thinking`` false the prompt has opened no reasoning.
    """
    ids = [int(i) for i in ids]
    if ids and ids[-1] == chat.end:
        ids = ids[:-1]
    if isinstance(chat, CompactChat):
        return chat.read(ids)
    if tokenizer.has_special("<|tool_call_begin|>"):
        parser = ToolCallParser(tokenizer, thinking=chat.thinks and thinking)
        parser.feed_ids(ids)
        parser.end()
        return parser.message
    return {"role": "assistant", "content": visible_text(tokenizer, ids)}
