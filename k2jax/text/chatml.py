"""ChatML, the chat format of many small models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from k2jax.errors import UserError
from k2jax.text.messages import Message, content_text, encode_text, tool_calls
from k2jax.text.tokenizer import Tokenizer

CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
_NO_TOOLS = "this model's chat format (ChatML) has no tools; omit them or use a Kimi K2 tokenizer"


class ChatML:
    """ChatML: ``<|im_start|>user``, a line break, the content, ``<|im_end|>``, a line break. It has no tools."""

    thinks = False

    def __init__(self, tokenizer: Tokenizer, default_system: str = ""):
        self.default_system = default_system
        self.end = tokenizer.special_id("<|im_end|>")
        self.after_end = tokenizer.encode("\n")
        self._start = tokenizer.special_id("<|im_start|>")
        self._tokenizer = tokenizer
        self.generation_prompt = [self._start, *tokenizer.encode("assistant\n")]
        self.direct_prompt = self.generation_prompt

    def declare_tools(self, tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Raises UserError, because ChatML does not define tools."""
        raise UserError(_NO_TOOLS)

    def render(self, message: Message, calls_before: int = 0) -> list[int]:
        """Returns the start token, the role on a line, and the content."""
        role, text = message["role"], content_text(message)
        if role == "tool" or tool_calls(message):
            raise UserError(_NO_TOOLS)
        if role == "assistant":  # encoded separately from the prompt, as if it were sampled
            return [*self.generation_prompt, *encode_text(self._tokenizer, text)]
        return [self._start, *encode_text(self._tokenizer, f"{role}\n{text}")]

    def answer_prompt(self, message: Message) -> list[int]:
        """Returns the generation prompt, which is the same for every answer."""
        return self.generation_prompt

    def closing(self, role: str) -> list[int]:
        """Returns the ``end`` of every message."""
        return [self.end]

    def check_order(self, roles: Sequence[str]) -> None:
        """Accepts messages in any order."""

    def count_calls(self, ids: Iterable[int]) -> int:
        """Returns 0, because ChatML has no tools."""
        return 0
