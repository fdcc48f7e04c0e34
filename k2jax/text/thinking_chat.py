"""Kimi K2.5's chat format: Kimi K2's with reasoning between ``<think>`` and ``</think>`` before every answer."""

from __future__ import annotations

from collections.abc import Sequence

from k2jax.text.common_chat import BEGINNING, MessageContext, Tools
from k2jax.text.constrained.rules import ANY_TEXT, token
from k2jax.text.kimi_chat import KimiChat
from k2jax.text.messages import (
    THINK_BEGIN,
    THINK_END,
    Message,
    ends_cycle,
    split_reasoning,
    text_field,
    tool_calls,
    without_reasoning,
)
from k2jax.text.tokenizer import Tokenizer
from k2jax.text.tool_types import declare_functions


class KimiThinkingChat(KimiChat):
    """Reasoning opens the assistant's message, or is empty; tools are declared as TypeScript types.

    Source: the release's template, as the package ``renderers`` has it (``kimi_k25``).
    """

    thinks = True
    default_system = ""
    named_roles = frozenset({"system", "user", "assistant", "tool"})

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer)
        self.generation_prompt = [*self.generation_prompt, tokenizer.special_id(THINK_BEGIN)]
        self._think_end = tokenizer.special_id(THINK_END)
        self.direct_prompt = [*self.generation_prompt, self._think_end]

    def tools_text(self, tools: Tools) -> str:
        """Returns a namespace of TypeScript function types."""
        return declare_functions(tools)

    def render(self, message: Message, context: MessageContext = BEGINNING) -> list[int]:
        """Returns the message as Kimi K2 has it, by name if it has one, and an assistant's with its reasoning."""
        role = message["role"]
        if role == "assistant":
            (reasoning, text), calls = split_reasoning(message), tool_calls(message)
            ids = [*self._opening(message), *self._text(reasoning), self._think_end, *self._text(text)]
            return [*ids, *(self._section(calls, context.calls) if calls else [])]
        if role == "tool":
            return super().render(message, context)
        token = "<|im_user|>" if role == "user" else "<|im_system|>"
        return [*self._head(token, text_field(message, "name", role)), *self._content(message)]

    def answer_prompt(self, message: Message) -> list[int]:
        """Returns the prompt after which the model writes this answer: with or without reasoning."""
        opening = self._opening(message)
        return opening if split_reasoning(message)[0] else [*opening, self._think_end]

    def cycles(self, messages: Sequence[Message]) -> list[int]:
        """Returns 0 and the indices after answers that call no tool, with which cycles end."""
        return [0, *(index + 1 for index, message in enumerate(messages) if ends_cycle(message))]

    def as_history(self, messages: Sequence[Message], thinking: bool = True) -> list[Message]:
        """Returns the messages, those before the last cycle without reasoning."""
        begin = self.cycles(messages)[-1]
        return [*map(without_reasoning, messages[:begin]), *messages[begin:]]

    def reasoning_rule(self, thinking: bool) -> str:
        """Returns the reasoning that the prompt has opened, and its end; see ``ChatFormat.reasoning_rule``."""
        return f"{ANY_TEXT} {token(self._think_end)}" if thinking else ""

    def _opening(self, message: Message) -> list[int]:
        if not (name := text_field(message, "name", "")):
            return self.generation_prompt
        return [*self._head("<|im_assistant|>", name), self.generation_prompt[-1]]
