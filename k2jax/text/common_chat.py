"""The chat format of a family of models: what most formats have in common, and where they differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from k2jax.text.messages import Message, encode_text
from k2jax.text.tokenizer import Tokenizer


class ChatFormat(ABC):
    """Messages in any order that all end with one token, and answers without reasoning that all begin alike.

    A format adds ``declare_tools`` and ``render``, sets ``generation_prompt`` and ``direct_prompt`` where an answer
    begins with markup, and overrides where it differs.

    Attributes:
        default_system: text of the system message that is added to a conversation without one; empty for none.
        end: id that ends a message; sampling stops there.
        after_end: ids between the end of a message and the next message.
        generation_prompt: ids that begin a message of the assistant, and after which the model samples an answer.
        direct_prompt: the same for an answer without reasoning; equal to it in formats without reasoning.
        thinks: whether an answer begins with reasoning.
        named_roles: roles whose messages are rendered with their ``name``.
    """

    thinks = False
    named_roles: frozenset[str] = frozenset({"tool"})
    default_system = ""

    def __init__(self, tokenizer: Tokenizer, end: int):
        self.end = end
        self.after_end: list[int] = []
        self.generation_prompt: list[int] = []
        self.direct_prompt: list[int] = []
        self._tokenizer = tokenizer

    @abstractmethod
    def declare_tools(self, tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Returns the ids that declare tools to the model, at the beginning of a conversation."""

    @abstractmethod
    def render(self, message: Message, calls_before: int = 0) -> list[int]:
        """Returns the ids of a message without its ``end``; ``calls_before`` is the number of earlier tool calls."""

    def tools_text(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Returns the text that ``declare_tools`` encodes, whose length a server limits; none where it encodes none."""
        return ""

    def answer_prompt(self, message: Message) -> list[int]:
        """Returns the ids of a rendered answer that the model is given and does not write."""
        return self.generation_prompt

    def closing(self, role: str) -> list[int]:
        """Returns the ids that end a message of this role: ``end``, or none where the format has no mark there."""
        return [self.end]

    def check_order(self, roles: Sequence[str]) -> None:  # noqa: B027, most formats accept any order
        """Raises UserError if the format has no conversation whose messages have these roles, in this order."""

    def count_calls(self, ids: Iterable[int]) -> int:
        """Returns the number of tool calls that begin in these ids; 0 where calls have no ids in the text."""
        return 0

    def _text(self, text: str) -> list[int]:
        return encode_text(self._tokenizer, text)
