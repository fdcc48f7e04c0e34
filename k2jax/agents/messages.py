"""Sampled ids as messages, for verifiers, environments and readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from k2jax.text.chat import ChatFormat
from k2jax.text.messages import function_of


def read_message(
    chat: ChatFormat, ids: Sequence[int], thinking: bool = True, before: Sequence[int] = ()
) -> dict[str, Any]:
    """Sampled ids as an assistant's message in OpenAI's format.

    The end of the message is left out. Other special tokens are written by name, so that no token is invisible to a
    verifier; tool calls and reasoning are parsed where the format has them. Blank arguments of a call are ``{}``.

    Args:
        chat: the format.
        ids: that were sampled.
        thinking: whether they follow the prompt of an answer that may begin with reasoning.
        before: ids of the conversation before them, over which formats without ids of calls count them.
    """
    ids = [int(i) for i in ids]
    if ids and ids[-1] == chat.end:
        ids = ids[:-1]
    message = chat.read(ids, thinking, chat.count_calls(before))
    for call in message.get("tool_calls", ()):
        call["function"]["name"], call["function"]["arguments"] = function_of(call)
    return message
