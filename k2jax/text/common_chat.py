"""The chat format of a family of models: what most formats have in common, and where they differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from k2jax.errors import UserError
from k2jax.text.answers import AnswerParser
from k2jax.text.constrained.rules import CallRules
from k2jax.text.messages import Message, encode_text
from k2jax.text.tokenizer import Tokenizer

Tools = Sequence[Mapping[str, Any]]
"""Declarations in OpenAI's format: ``{"type": "function", "function": …}``."""


class MessageContext(NamedTuple):
    """Where a message stands in a conversation, as far as its ids depend on that.

    Attributes:
        roles: of the messages before it.
        calls: number of calls of tools before it.
        tools: those of the conversation.
    """

    roles: Sequence[str] = ()
    calls: int = 0
    tools: Tools = ()


BEGINNING = MessageContext()


def occurrences(ids: Iterable[int], token: int) -> int:
    """How often a token is among ids, a list of them or an array."""
    return int(np.count_nonzero(ids == token)) if isinstance(ids, np.ndarray) else list(ids).count(token)


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
    def declare_tools(self, tools: Tools) -> list[int]:
        """Returns the ids that declare tools before all messages; none where a message declares them.

        Raises:
            UserError: the format has no tools, or these cannot be declared.
        """

    @abstractmethod
    def render(self, message: Message, context: MessageContext = BEGINNING) -> list[int]:
        """Returns the ids of a message without its ``end``."""

    def preface(self, tools: Tools) -> list[int]:
        """Returns the ids before a first message that is not the system's."""
        if not self.default_system:
            return []
        default = self.render({"role": "system", "content": self.default_system}, MessageContext(tools=tools))
        return [*default, *self.closing("system"), *self.after_end]

    def tools_text(self, tools: Tools) -> str:
        """Returns the text that declares tools, whose length a server limits; none where they are not declared."""
        return ""

    def answer_prompt(self, message: Message) -> list[int]:
        """Returns the ids of a rendered answer that the model is given and does not write."""
        return self.generation_prompt

    def closing(self, role: str) -> list[int]:
        """Returns the ids that end a message of this role: ``end``, or none where the format has no mark there."""
        return [self.end]

    def joint(self, roles: Sequence[str], role: str) -> list[int]:
        """Returns the ids that end what earlier messages have left open, before a message of a role."""
        return []

    def check_order(self, roles: Sequence[str], tools: Tools) -> None:  # noqa: B027, most formats accept any order
        """Raises UserError if the format has no conversation whose messages have these roles, in this order."""

    def count_calls(self, ids: Iterable[int]) -> int:
        """Returns the number of tool calls that begin in a conversation; 0 where the format writes no ids of calls."""
        return 0

    def parser(self, thinking: bool = True, shows_all: bool = False, calls_before: int = 0) -> AnswerParser | None:
        """Returns what reads one answer of the model; None where all of an answer is text.

        Args:
            thinking: whether the answer follows ``generation_prompt``, not ``direct_prompt``.
            shows_all: whether special tokens without a meaning are text, by name.
            calls_before: number of calls before the answer, from which those without ids are counted.
        """
        return None

    def read(self, ids: Sequence[int], thinking: bool = True, calls_before: int = 0) -> dict[str, Any]:
        """Returns sampled ids without their ``end`` as a message in OpenAI's format, no token invisible."""
        parser = self.parser(thinking, shows_all=True, calls_before=calls_before)
        if parser is None:
            return {"role": "assistant", "content": visible_text(self._tokenizer, ids)}
        parser.feed_ids(ids)
        parser.end()
        return parser.message

    def cycles(self, messages: Sequence[Message]) -> list[int]:
        """Returns the indices at which cycles begin; reasoning of earlier cycles is not read again, if there is any."""
        return [0]

    def as_history(self, messages: Sequence[Message], thinking: bool = True) -> list[Message]:
        """Returns a conversation as the model reads it before its next answer: without reasoning of earlier cycles.

        Args:
            messages: of the conversation, the model's next answer left out.
            thinking: whether that begins with reasoning.

        Raises:
            UserError: the content of a message is no text.
        """
        return list(messages)

    def reasoning_rule(self, thinking: bool) -> str:
        """Returns what stands before the text of an answer, as an expression of a grammar; empty for nothing.

        Args:
            thinking: as of ``parser``.
        """
        return ""

    def call_rules(self, tools: Sequence[tuple[str, str]], many: bool) -> CallRules:
        """Returns the rules ``calls`` and ``rest`` of a grammar, the calls of an answer; see ``CallRules``.

        Args:
            tools: names of functions, and of the rules of their arguments.
            many: whether an answer may have several calls, in formats that have them.

        Raises:
            UserError: the format writes no calls that a grammar describes.
        """
        raise UserError("this model's chat format has no calls of tools that a grammar describes")

    def _text(self, text: str) -> list[int]:
        return encode_text(self._tokenizer, text)


def visible_text(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """The text of ids; special tokens among them are written by name, so that no token is invisible to a reader."""
    text, run = [], []
    for i in ids:
        name = tokenizer.special_name(int(i))
        if name is None:
            run.append(int(i))
            continue
        text += [tokenizer.decode(run), name]
        run = []
    return "".join([*text, tokenizer.decode(run)])
