"""Questions and answers without markup, for models whose vocabulary has no chat tokens, e.g. of characters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from k2jax.errors import UserError
from k2jax.text.messages import Message, content_text, encode_text, tool_calls
from k2jax.text.tokenizer import Tokenizer

_ORDER = ("user", "assistant")


class PlainChat:
    """Each turn is the beginning-of-document token, the user's text, the assistant's, and the end-of-document token.

    Nothing stands between the two texts, so that questions and answers alternate.
    """

    thinks = False

    def __init__(self, tokenizer: Tokenizer):
        self.default_system = ""
        self.end = tokenizer.eos
        self.after_end: list[int] = []
        self.generation_prompt: list[int] = []
        self.direct_prompt = self.generation_prompt
        self._begin = tokenizer.encode_document("")
        self._tokenizer = tokenizer

    def declare_tools(self, tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Raises UserError, because there is no markup for tools."""
        raise UserError("the plain chat format has no tools; omit them, or use a tokenizer with chat tokens")

    def render(self, message: Message, calls_before: int = 0) -> list[int]:
        """Returns the message's text, after the beginning-of-document token if it is the user's."""
        if tool_calls(message):
            self.declare_tools([])
        text = encode_text(self._tokenizer, content_text(message))
        return [*self._begin, *text] if message["role"] == "user" else text

    def answer_prompt(self, message: Message) -> list[int]:
        """Returns the generation prompt, which is the same for every answer."""
        return self.generation_prompt

    def closing(self, role: str) -> list[int]:
        """Returns the ``end`` of the assistant's message; the user's has none."""
        return [self.end] if role == "assistant" else []

    def check_order(self, roles: Sequence[str]) -> None:
        """Raises UserError unless messages of the user and of the assistant alternate, the user's first."""
        if any(role != _ORDER[place % 2] for place, role in enumerate(roles)):
            raise UserError(
                f"in the plain chat format the user asks and the assistant answers in turn, not {', '.join(roles)}; "
                "use a tokenizer with chat tokens"
            )

    def count_calls(self, ids: Iterable[int]) -> int:
        """Returns 0, because there are no tools."""
        return 0
