"""What most chat formats have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from k2jax.text.messages import Message, encode_text
from k2jax.text.tokenizer import Tokenizer


class CommonChat:
    """Messages in any order that all end with one token, and answers without reasoning that all begin alike.

    A format adds ``declare_tools`` and ``render``, sets ``generation_prompt`` and ``direct_prompt`` where an answer
    begins with markup, and overrides where it differs.
    """

    thinks = False

    def __init__(self, tokenizer: Tokenizer, end: int, default_system: str = ""):
        self.default_system = default_system
        self.end = end
        self.after_end: list[int] = []
        self.generation_prompt: list[int] = []
        self.direct_prompt: list[int] = []
        self._tokenizer = tokenizer

    def tools_text(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Returns no text: tools, if there are any, are not declared."""
        return ""

    def answer_prompt(self, message: Message) -> list[int]:
        """Returns the generation prompt, which is the same for every answer."""
        return self.generation_prompt

    def closing(self, role: str) -> list[int]:
        """Returns the ``end`` of every message."""
        return [self.end]

    def check_order(self, roles: Sequence[str]) -> None:
        """Accepts messages in any order."""

    def count_calls(self, ids: Iterable[int]) -> int:
        """Returns 0: calls, if there are any, have no ids in the text."""
        return 0

    def _text(self, text: str) -> list[int]:
        return encode_text(self._tokenizer, text)
