"""Qwen3's chat format: that of Qwen2.5 with reasoning between ``<think>`` and ``</think>`` before an answer."""

from __future__ import annotations

from collections.abc import Sequence

from k2jax.text.common_chat import BEGINNING, MessageContext
from k2jax.text.constrained.rules import ANY_TEXT, token
from k2jax.text.hermes_chat import HermesChat
from k2jax.text.messages import (
    THINK_BEGIN,
    THINK_END,
    Message,
    split_reasoning,
    without_reasoning,
)
from k2jax.text.tokenizer import Tokenizer

_BARE = "bare"
"""Key of an answer of the history that is written without a block of reasoning, even an empty one."""


class QwenChat(HermesChat):
    """The model opens its reasoning itself; a prompt for an answer without reasoning ends with an empty block.

    An answer without reasoning keeps that block in its conversation, as ``renderers`` has it, so that what follows is
    appended. Once the user has asked again, earlier reasoning leaves the history together with its block.

    Source: the release's template, as the package ``renderers`` has it (``qwen3``).
    """

    thinks = True

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer)
        self._think, self._think_end = tokenizer.special_id(THINK_BEGIN), tokenizer.special_id(THINK_END)
        block = self._encoded(self._think, "\n\n", self._think_end, "\n\n")
        self.direct_prompt = [*self.generation_prompt, *block]

    def render(self, message: Message, context: MessageContext = BEGINNING) -> list[int]:
        """Returns the message as Qwen2.5 has it, an assistant's with its reasoning or an empty block of it."""
        if message["role"] != "assistant":
            return super().render(message, context)
        reasoning, text = split_reasoning(message)
        if message.get(_BARE):
            return [*self.generation_prompt, *self._answer(text, message)]
        text = text.lstrip("\n")
        if not reasoning:
            return [*self.direct_prompt, *self._answer(text, message)]
        thought = ["\n" + reasoning.strip("\n") + "\n"]
        return [
            *self.generation_prompt,
            *self._encoded(self._think, *thought, self._think_end),
            *self._answer(text, message, "\n\n"),
        ]

    def reasoning_rule(self, thinking: bool) -> str:
        """Returns the reasoning that a model may open itself, and the lines behind it."""
        if not thinking:
            return ""
        return f"({token(self._think)} {ANY_TEXT} {token(self._think_end)} /\\n{{0,2}}/)?"

    def answer_prompt(self, message: Message) -> list[int]:
        """Returns the prompt after which the model writes this answer: with or without reasoning."""
        is_direct = not message.get(_BARE) and not split_reasoning(message)[0]
        return self.direct_prompt if is_direct else self.generation_prompt

    def cycles(self, messages: Sequence[Message]) -> list[int]:
        """Returns 0 and the indices of the user's questions."""
        return [0, *(index for index, message in enumerate(messages) if _is_question(message))]

    def as_history(self, messages: Sequence[Message], thinking: bool = True) -> list[Message]:
        """Returns the messages; answers before the last question have no reasoning and no block of it.

        Where the next answer has reasoning, those that have none are without a block too, as in the template; where it
        has none, they were answered like it and keep theirs.
        """
        questions = [index for index, message in enumerate(messages) if _is_question(message)]
        begin, last = questions[-1] if questions else len(messages) - 1, len(messages) - 1
        shown: list[Message] = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                shown.append(message)
                continue
            reasoning, is_old = split_reasoning(message)[0], index <= begin
            is_bare = is_old if reasoning else thinking and (is_old or index < last)
            if message.get("partial"):
                is_bare = False
            read = without_reasoning(message) if reasoning and is_bare else message
            shown.append({**read, _BARE: True} if is_bare else read)
        return shown


def _is_question(message: Message) -> bool:
    """Whether a message is the user's own, and no result that a client has written as one."""
    if message["role"] != "user":
        return False
    text = message["content"].strip() if isinstance(message["content"], str) else ""
    return not (text.startswith("<tool_response>") and text.endswith("</tool_response>"))
