"""Conversations as token ids: an append-only builder over the chat formats.

Markup consists of special ids and content of text ids, so content cannot inject markup. Sampled messages enter as the
ids that the model sampled, and are never encoded again from text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from k2jax.errors import UserError, abbreviate
from k2jax.text.chatml import CHATML_TOKENS, ChatML
from k2jax.text.common_chat import ChatFormat, MessageContext
from k2jax.text.compact_chat import CompactChat
from k2jax.text.hermes_chat import HERMES_TOKENS, HermesChat
from k2jax.text.kimi_chat import KIMI_TOKENS, KimiChat
from k2jax.text.llama_chat import LLAMA_TOKENS, LlamaChat
from k2jax.text.messages import THINK_BEGIN, THINK_END, Message, stated_reasoning, tool_calls
from k2jax.text.plain_chat import PlainChat
from k2jax.text.qwen_chat import QwenChat
from k2jax.text.thinking_chat import KimiThinkingChat
from k2jax.text.tokenizer import Tokenizer


class ChatBuilder:
    """Builds a conversation; ids are only appended.

    Attributes:
        format: the chat format.
        tokens: the ids so far, but for those that ``resume`` was to leave out.
        by_assistant: for each id, whether the assistant wrote it (content, tool calls and the end of its message, given
            or sampled), as opposed to the format or another role, and is to be trained on it: the ids to train on.
        first_answer: number of ids before the first message that ``add`` added of the assistant, trained or not; None
            without one.
    """

    def __init__(self, chat: ChatFormat, tools: Sequence[Mapping[str, Any]] | None = None):
        """Starts a conversation, with tools in OpenAI's format (``{"type": "function", "function": …}``)."""
        self.format = chat
        self.tokens: list[int] = []
        self.by_assistant: list[bool] = []
        self.first_answer: int | None = None
        self._roles: list[str] = []
        self._started = False  # whether the first message, or the default system message, was added
        self._open = False  # whether the assistant's message has no end yet
        self._tools = tuple(tools or ())
        self._before: Sequence[int] = ()  # ids that were left out
        if tools:
            self._append(chat.declare_tools(tools))

    @classmethod
    def resume(
        cls,
        chat: ChatFormat,
        tokens: Sequence[int],
        roles: Sequence[str],
        is_open: bool,
        by_assistant: Sequence[bool] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        leaves_out: bool = False,
    ) -> ChatBuilder:
        """Goes on with a conversation whose tokens are known, without encoding it again.

        Args:
            chat: its chat format.
            tokens: its ids.
            roles: of its messages; empty where only tools are declared.
            is_open: whether it ends with ids that were sampled after ``open_assistant``.
            by_assistant: of each id; None is False for all of them.
            tools: of the conversation, which some formats declare in a message that may be still to come.
            leaves_out: whether the builder's own ids are those alone that are added, so that ``tokens``, which may be
                an array int32 ``[T]``, are not copied.
        """
        builder = cls(chat)
        builder._tools = tuple(tools)
        if leaves_out:
            builder._before = tokens
        else:
            builder.tokens = list(tokens)
            builder.by_assistant = [False] * len(builder.tokens) if by_assistant is None else list(by_assistant)
        builder._roles, builder._started, builder._open = list(roles), bool(roles), is_open
        return builder

    def add(self, message: Message) -> None:
        """Adds a message in OpenAI's format; a sampled message that is still open is ended first.

        Args:
            message: as ``message_fields.read_message`` gives it: ``role`` (system, user, assistant or tool),
                ``content`` (text, a list of text parts, or None) and, by role, ``reasoning_content``, ``tool_calls``,
                ``tool_call_id`` and ``name``. One of the assistant's with ``weight`` 0 is not trained.

        Raises:
            UserError: the message is malformed, or the format does not support it.
        """
        if not isinstance(message, Mapping) or message.get("role") not in ("system", "user", "assistant", "tool"):
            raise UserError(f"a chat message needs a role: system, user, assistant or tool, not {abbreviate(message)}")
        role = message["role"]
        self._check_reasoning(message)
        # Rendered before anything is added, so that a rejected message changes nothing.
        ids = self._rendered(message)
        self._begin(role)
        prompt = len(self.format.answer_prompt(message)) if role == "assistant" else len(ids)
        self._append(ids[:prompt])
        if role == "assistant" and self.first_answer is None:
            self.first_answer = len(self.tokens)
        trained = role == "assistant" and message.get("weight", 1) != 0
        closing = self.format.closing(role)
        self._append([*ids[prompt:], *closing], by_assistant=trained)
        self._append(self.format.after_end if closing else [])
        self._roles.append(role)

    def open_with(self, message: Message) -> None:
        """Adds a message of the assistant without its end; the ids that are sampled after it continue it.

        Args:
            message: as for ``add``: a text, in formats that have it after its reasoning.

        Raises:
            UserError: it has tool calls, which cannot be continued, or the format does not support it.
        """
        if tool_calls(message):
            raise UserError("a message with tool calls cannot be continued; send their results")
        self._check_reasoning(message)
        ids = self._rendered(message)
        self._begin("assistant")
        self._roles.append("assistant")
        self._append(ids)
        self._open = True

    def _rendered(self, message: Message) -> list[int]:
        """The ids of the next message; nothing is added."""
        self.format.check_order([*self._roles, message["role"]], self._tools)
        calls = self.format.count_calls(self._all_ids()) if message.get("tool_calls") else 0
        return self.format.render(message, MessageContext(self._roles, calls, self._tools))

    def _check_reasoning(self, message: Message) -> None:
        if not self.format.thinks and message["role"] == "assistant" and stated_reasoning(message):
            raise UserError(
                "the message has reasoning, which this model's chat format does not have; leave it out, or write it "
                "into the content"
            )

    def open_assistant(self, thinking: bool = True) -> None:
        """Adds the generation prompt; the ids that are sampled after it are the assistant's message.

        Args:
            thinking: whether the answer is to begin with reasoning, in formats that have it.
        """
        self.format.check_order([*self._roles, "assistant"], self._tools)
        self._begin("assistant")
        self._roles.append("assistant")
        self._append(self.format.generation_prompt if thinking else self.format.direct_prompt)
        self._open = True

    def append_sampled(self, ids: Iterable[int]) -> None:
        """Adds ids that the model sampled after ``open_assistant``, unchanged; it can be called several times."""
        if not self._open:
            raise ValueError("call open_assistant before append_sampled")
        self._append([int(i) for i in ids], by_assistant=True)

    def _begin(self, role: str) -> None:
        """Prepares for a message of a role: ends what is open, or adds what stands before the first one."""
        if self._open:
            # The model may have sampled the end itself.
            last = (self.tokens or self._before)[-1]
            self._append([] if last == self.format.end else [self.format.end])
            self._append(self.format.after_end)
            self._open = False
        if not self._started and role != "system":
            self._append(self.format.preface(self._tools))
        self._append(self.format.joint(self._roles, role))
        self._started = True

    def _all_ids(self) -> Sequence[int]:
        """The ids so far, with those that were left out."""
        if not len(self._before):
            return self.tokens
        return np.concatenate([self._before, np.array(self.tokens, np.int32)])

    def _append(self, ids: list[int], by_assistant: bool = False) -> None:
        self.tokens += ids
        self.by_assistant += [by_assistant] * len(ids)


def render_history(
    chat: ChatFormat, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, strip: bool = True
) -> ChatBuilder:
    """A conversation rendered anew, as a thinking model reads it before its next answer.

    A builder only appends and keeps all reasoning. Where the reasoning of tool cycles that have ended is stripped, the
    tokens of those cycles are others than the sampled ones: in training, a branch.

    Args:
        chat: the chat format.
        messages: in OpenAI's format, reasoning in ``reasoning_content``.
        tools: tools to declare.
        strip: whether to drop the reasoning that the model does not read again.

    Raises:
        UserError: a message is malformed, or the format does not support it.
    """
    builder = ChatBuilder(chat, tools)
    for message in chat.as_history(messages) if strip else messages:
        builder.add(message)
    return builder


_THINK_TOKENS = (THINK_BEGIN, THINK_END)
_FORMATS: tuple[tuple[tuple[str, ...], type[ChatFormat]], ...] = (
    ((*KIMI_TOKENS, *_THINK_TOKENS), KimiThinkingChat),
    (KIMI_TOKENS, KimiChat),
    ((*HERMES_TOKENS, *_THINK_TOKENS), QwenChat),
    (HERMES_TOKENS, HermesChat),
    (CHATML_TOKENS, ChatML),
    (LLAMA_TOKENS, LlamaChat),
)
"""Formats with the special tokens that choose them; the first one counts."""


def chat_format(tokenizer: Tokenizer) -> ChatFormat:
    """Returns the chat format whose special tokens a vocabulary has.

    These are Kimi K2.5's, Kimi K2's, Qwen3's, Qwen2.5's, which is Hermes', ChatML and Llama 3's.

    Raises:
        UserError: it has the special tokens of none.
    """
    for names, kind in _FORMATS:
        if all(tokenizer.has_special(name) for name in names):
            return kind(tokenizer)
    raise UserError(
        f"the tokenizer has no chat format: it lacks the special tokens of Kimi K2 ({' '.join(KIMI_TOKENS)}), of "
        f"ChatML and Qwen ({' '.join(CHATML_TOKENS)}) and of Llama 3 ({' '.join(LLAMA_TOKENS)}); use a chat model's "
        "tokenizer, or train with config.data.chat_format plain"
    )


def configured_chat(tokenizer: Tokenizer, kind: Literal["auto", "plain", "compact"]) -> ChatFormat:
    """Returns the chat format that ``config.data.chat_format`` names.

    Args:
        tokenizer: the vocabulary.
        kind: ``auto`` for the vocabulary's own, as ``chat_format`` finds it, ``plain`` for one without markup, or
            ``compact`` for one of several turns and tools that needs no tokens but those of documents.

    Raises:
        UserError: the vocabulary has no format of its own.
    """
    kinds = {"plain": PlainChat, "compact": CompactChat}
    return kinds[kind](tokenizer) if kind in kinds else chat_format(tokenizer)
