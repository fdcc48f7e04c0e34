"""Conversations of several turns, and calls of tools, for small models of characters: a compact action language.

A message of the user, the system or a tool stands between the tokens that begin and end a document, and the model's
answer ends with the latter. A line of an answer that begins with ``!`` is a call: ``!NAME ARGUMENTS``. Its arguments
have no names: they are words in the order of the tool's parameters, of which the last takes the rest of the line. All
other lines are the answer's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
from typing import Any

from k2jax.files.bounded_json import parse_bounded_json
from k2jax.text.common_chat import BEGINNING, ChatFormat, MessageContext, Tools, visible_text
from k2jax.text.media import content_ids
from k2jax.text.messages import Message, content_text, function_of, tool_calls
from k2jax.text.tokenizer import Tokenizer

CALL_MARK = "!"


class CompactChat(ChatFormat):
    """Messages without roles: what the model did not write is framed, and what it writes only ends.

    Tools are not declared: a model learns them from demonstrations.
    """

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer, tokenizer.eos)
        self._begin = tokenizer.encode_document("")

    def declare_tools(self, tools: Tools) -> list[int]:
        """Returns no ids."""
        return []

    def render(self, message: Message, context: MessageContext = BEGINNING) -> list[int]:
        """Returns the text of a message, after the token that begins a document unless it is the assistant's."""
        if message["role"] != "assistant":
            return [*self._begin, *content_ids(self._tokenizer, message)]
        text = content_text(message)
        lines = [*([text] if text else []), *(_line(call) for call in tool_calls(message))]
        return self._text("\n".join(lines))

    def read(self, ids: Sequence[int], thinking: bool = True, calls_before: int = 0) -> dict[str, Any]:
        """Sampled ids without their ``end`` as a message in OpenAI's format.

        The arguments of a call are a JSON string, not an object, since they have no names; the id of a call is its
        number in the message.
        """
        text, calls = [], []
        for line in visible_text(self._tokenizer, ids).split("\n"):
            if not line.startswith(CALL_MARK):
                text.append(line)
                continue
            name, _, arguments = line.removeprefix(CALL_MARK).partition(" ")
            function = {"name": name, "arguments": json.dumps(arguments)}
            calls.append({"id": str(len(calls)), "type": "function", "function": function})
        message: dict[str, Any] = {"role": "assistant", "content": "\n".join(text)}
        return message | ({"tool_calls": calls} if calls else {})


def _line(call: Mapping[str, Any]) -> str:
    """A call as it is written: arguments with names as the words of their values, in order."""
    name, arguments = function_of(call)
    try:
        values = parse_bounded_json(arguments)
    except ValueError:
        values = arguments
    if isinstance(values, Mapping):
        values = " ".join(value if isinstance(value, str) else json.dumps(value) for value in values.values())
    return f"{CALL_MARK}{name} {values}".rstrip(" ")
