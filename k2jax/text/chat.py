"""Conversations as token ids: an append-only builder for Kimi K2's chat format and ChatML.

Markup consists of special ids and content of text ids, so content cannot inject markup. Sampled messages enter as the
ids that the model sampled, and are never encoded again from text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import json
from typing import Any, Protocol

from k2jax.errors import UserError, abbreviate
from k2jax.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
_NO_TOOLS = "this model's chat format (ChatML) has no tools; omit them or use a Kimi K2 tokenizer"
KIMI_SYSTEM = "You are Kimi, an AI assistant created by Moonshot AI."
_KIMI_TOKENS = ("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>")
_CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")


class ChatFormat(Protocol):
    """The chat format of a family of models.

    Attributes:
        default_system: text of the system message that is added to a conversation without one; empty for none.
        end: id that ends a message; sampling stops there.
        after_end: ids between the end of a message and the next message.
        generation_prompt: ids that begin every message of the assistant, and after which the model samples an answer.
    """

    default_system: str
    end: int
    after_end: list[int]
    generation_prompt: list[int]

    def declare_tools(self, tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Returns the ids that declare tools to the model, at the beginning of a conversation."""

    def render(self, message: Message, calls_before: int = 0) -> list[int]:
        """Returns the ids of a message without its ``end``; ``calls_before`` is the number of earlier tool calls."""

    def count_calls(self, ids: Iterable[int]) -> int:
        """Returns the number of tool calls that begin in these ids."""


class ChatBuilder:
    """Builds a conversation; ids are only appended.

    Attributes:
        format: the chat format.
        tokens: the ids so far.
        by_assistant: for each id, whether the assistant wrote it (content, tool calls and the end of its message, given
            or sampled), as opposed to the format or another role: the ids to train on.
    """

    def __init__(self, chat: ChatFormat, tools: Sequence[Mapping[str, Any]] | None = None):
        """Starts a conversation, with tools in OpenAI's format (``{"type": "function", "function": …}``)."""
        self.format = chat
        self.tokens: list[int] = []
        self.by_assistant: list[bool] = []
        self._started = False  # whether the first message, or the default system message, was added
        self._open = False  # whether the assistant's message has no end yet
        if tools:
            self._append(chat.declare_tools(tools))

    def add(self, message: Message) -> None:
        """Adds a message in OpenAI's format; a sampled message that is still open is ended first.

        Args:
            message: ``role`` (system, user, assistant or tool), ``content`` (text, a list of text parts, or None) and,
                by role, ``tool_calls``, ``tool_call_id`` and ``name``.

        Raises:
            UserError: the message is malformed, or the format does not support it.
        """
        if not isinstance(message, Mapping) or message.get("role") not in ("system", "user", "assistant", "tool"):
            raise UserError(f"a chat message needs a role: system, user, assistant or tool, not {abbreviate(message)}")
        role = message["role"]
        # Rendered before anything is added, so that a rejected message changes nothing.
        ids = self.format.render(message, self.format.count_calls(self.tokens) if message.get("tool_calls") else 0)
        self._begin(with_default=role != "system")
        prompt = len(self.format.generation_prompt) if role == "assistant" else len(ids)
        self._append(ids[:prompt])
        self._append([*ids[prompt:], self.format.end], by_assistant=role == "assistant")
        self._append(self.format.after_end)

    def open_assistant(self) -> None:
        """Adds the generation prompt; the ids that are sampled after it are the assistant's message."""
        self._begin(with_default=True)
        self._append(self.format.generation_prompt)
        self._open = True

    def append_sampled(self, ids: Iterable[int]) -> None:
        """Adds ids that the model sampled after ``open_assistant``, unchanged; it can be called several times."""
        if not self._open:
            raise ValueError("call open_assistant before append_sampled")
        self._append([int(i) for i in ids], by_assistant=True)

    def _begin(self, with_default: bool) -> None:
        """Prepares for a message: ends the open one, or adds the default system message before the first one."""
        if self._open:
            # The model may have sampled the end itself.
            self._append([] if self.tokens[-1] == self.format.end else [self.format.end])
            self._append(self.format.after_end)
            self._open = False
        if not self._started and with_default and self.format.default_system:
            default = self.format.render({"role": "system", "content": self.format.default_system})
            self._append([*default, self.format.end, *self.format.after_end])
        self._started = True

    def _append(self, ids: list[int], by_assistant: bool = False) -> None:
        self.tokens += ids
        self.by_assistant += [by_assistant] * len(ids)


def chat_format(tokenizer: Tokenizer, default_system: str | None = None) -> ChatFormat:
    """Returns the chat format whose special tokens a vocabulary has: Kimi K2's, else ChatML.

    Args:
        tokenizer: the vocabulary.
        default_system: text of the system message that is added to a conversation without one; None for the format's
            default (ChatML has none).

    Raises:
        UserError: it has the special tokens of neither.
    """
    for names, kind in ((_KIMI_TOKENS, KimiChat), (_CHATML_TOKENS, ChatML)):
        if all(tokenizer.has_special(name) for name in names):
            return kind(tokenizer) if default_system is None else kind(tokenizer, default_system)
    raise UserError(
        f"the tokenizer has no chat format: it lacks the special tokens of Kimi K2 ({' '.join(_KIMI_TOKENS)}) and of "
        f"ChatML ({' '.join(_CHATML_TOKENS)}); use a chat model's tokenizer"
    )


class KimiChat:
    """Kimi K2: ``<|im_user|>user<|im_middle|>…<|im_end|>``, with declared tools first and calls in a section."""

    def __init__(self, tokenizer: Tokenizer, default_system: str = KIMI_SYSTEM):
        self.default_system = default_system
        self.end = tokenizer.special_id("<|im_end|>")
        self.after_end: list[int] = []
        self._tokenizer = tokenizer
        self.generation_prompt = self._head("<|im_assistant|>", "assistant")

    def declare_tools(self, tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Returns a system message named ``tool_declare``: the list as compact JSON with sorted keys."""
        listed = _json(list(tools), separators=(",", ":"), sort_keys=True)
        return [*self._head("<|im_system|>", "tool_declare"), *self._text(listed), self.end]

    def render(self, message: Message, calls_before: int = 0) -> list[int]:
        """Returns the role's special token and name, the content, and an assistant's tool calls."""
        role, text = message["role"], _content(message)
        if role == "assistant":
            calls = _calls(message)
            return [*self.generation_prompt, *self._text(text), *(self._section(calls, calls_before) if calls else [])]
        if role != "tool":
            return [*self._head("<|im_user|>" if role == "user" else "<|im_system|>", role), *self._text(text)]
        # Heading and result are encoded as one text, as in the release: a token can span the end of a line.
        text = f"## Return of {_field(message, 'tool_call_id', '')}\n{text}"
        return [*self._head("<|im_system|>", _field(message, "name", "tool")), *self._text(text)]

    def count_calls(self, ids: Iterable[int]) -> int:
        """Returns the number of tokens that begin a call."""
        begin = self._tokenizer.special_id("<|tool_call_begin|>")
        return sum(i == begin for i in ids)

    def _section(self, calls: Sequence[Mapping[str, Any]], calls_before: int) -> list[int]:
        """Tool calls; one without an id gets the id that the model would write, counted over the conversation."""
        special = self._tokenizer.special_id
        ids = [special("<|tool_calls_section_begin|>")]
        for number, call in enumerate(calls, calls_before):
            name, arguments = _function(call)
            ids += [special("<|tool_call_begin|>"), *self._text(_field(call, "id", f"functions.{name}:{number}"))]
            ids += [special("<|tool_call_argument_begin|>"), *self._text(arguments), special("<|tool_call_end|>")]
        return [*ids, special("<|tool_calls_section_end|>")]

    def _head(self, token: str, name: str) -> list[int]:
        special = self._tokenizer.special_id
        return [special(token), *self._text(name), special("<|im_middle|>")]

    def _text(self, text: str) -> list[int]:
        return _encode(self._tokenizer, text)


class ChatML:
    """ChatML: ``<|im_start|>user``, a line break, the content, ``<|im_end|>``, a line break. It has no tools."""

    def __init__(self, tokenizer: Tokenizer, default_system: str = ""):
        self.default_system = default_system
        self.end = tokenizer.special_id("<|im_end|>")
        self.after_end = tokenizer.encode("\n")
        self._start = tokenizer.special_id("<|im_start|>")
        self._tokenizer = tokenizer
        self.generation_prompt = [self._start, *tokenizer.encode("assistant\n")]

    def declare_tools(self, tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Raises UserError, because ChatML does not define tools."""
        raise UserError(_NO_TOOLS)

    def render(self, message: Message, calls_before: int = 0) -> list[int]:
        """Returns the start token, the role on a line, and the content."""
        role, text = message["role"], _content(message)
        if role == "tool" or _calls(message):
            raise UserError(_NO_TOOLS)
        if role == "assistant":  # encoded separately from the prompt, as if it were sampled
            return [*self.generation_prompt, *_encode(self._tokenizer, text)]
        return [self._start, *_encode(self._tokenizer, f"{role}\n{text}")]

    def count_calls(self, ids: Iterable[int]) -> int:
        """Returns 0, because ChatML has no tools."""
        return 0


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(
            f"a chat message contains an unpaired surrogate, which is not valid text: {abbreviate(text)}"
        ) from None
    return tokenizer.encode(text)


def _content(message: Message) -> str:
    content = message.get("content")
    if content is None:
        return ""
    parts = [content] if isinstance(content, str) else content
    if isinstance(parts, list | tuple):
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
        if all(isinstance(text, str) for text in texts):
            return "".join(texts)
    raise UserError(f"a chat message's content must be text or a list of text parts, not {abbreviate(content)}")


def _field(mapping: Mapping[str, Any], key: str, default: str) -> str:
    """An optional field that must be text."""
    value = mapping.get(key) or default
    if not isinstance(value, str):
        raise UserError(f"{key} of a chat message must be text, not {abbreviate(value)}")
    return value


def _calls(message: Message) -> Sequence[Mapping[str, Any]]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list | tuple):
        raise UserError(f"tool_calls of a chat message must be a list, not {abbreviate(calls)}")
    return calls


def _function(call: Mapping[str, Any]) -> tuple[str, str]:
    """Name and arguments of a call; arguments that are not text are encoded as JSON."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UserError(f"a tool call needs a function with a name, not {abbreviate(call)}")
    arguments = function.get("arguments", {})
    return function["name"], arguments if isinstance(arguments, str) else _json(arguments)


def _json(value: Any, **options: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, **options)
    except (TypeError, ValueError, RecursionError):
        raise UserError(f"tools and their arguments must be JSON values, not {abbreviate(value)}") from None
