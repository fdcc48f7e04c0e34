"""Sampled ids as messages, for verifiers, environments and readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from k2jax.text.chat import ChatFormat
from k2jax.text.compact_chat import CompactChat, visible_text
from k2jax.text.messages import function_of
from k2jax.text.tokenizer import Tokenizer
from k2jax.text.tool_calls import ToolCallParser


def read_message(tokenizer: Tokenizer, chat: ChatFormat, ids: Sequence[int], thinking: bool = True) -> dict[str, Any]:
    """Sampled ids as an assistant's message in OpenAI's format.

    The end of the message is left out. Other special tokens are written by name, so that no token is invisible to a
    verifier; tool calls, and the reasoning that the prompt of a thinking model opens, are parsed where the vocabulary
    has them. With ``thinking`` false the prompt has opened no reasoning. Blank arguments of a call are ``{}``.
    """
    ids = [int(i) for i in ids]
    if ids and ids[-1] == chat.end:
        ids = ids[:-1]
    if isinstance(chat, CompactChat):
        return chat.read(ids)
    if tokenizer.has_special("<|tool_call_begin|>"):
        parser = ToolCallParser(tokenizer, thinking=chat.thinks and thinking, shows_all=True)
        parser.feed_ids(ids)
        parser.end()
        return _with_arguments(parser.message)
    return {"role": "assistant", "content": visible_text(tokenizer, ids)}


def _with_arguments(message: dict[str, Any]) -> dict[str, Any]:
    for call in message.get("tool_calls", ()):
        call["function"]["name"], call["function"]["arguments"] = function_of(call)
    return message
