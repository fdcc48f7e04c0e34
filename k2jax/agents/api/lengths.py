"""Texts that cannot fit into a model's longest sequence, refused before anything of their size is made of them.

A tokenizer needs some 200 bytes of memory for each token, and a text of a few megabytes may be millions of tokens. So a
long text is encoded in pieces, only as far as it takes to see that it is too long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import itertools
from typing import Any

from k2jax.agents.api.api_error import ApiError
from k2jax.agents.api.model_card import ModelCard
from k2jax.agents.api.once import Once
from k2jax.agents.api.requests import check_prompt_length
from k2jax.text.messages import function_of, to_json

LONGEST_TOKEN = 64
"""Characters for each token of the longest sequence: more are no prompt, whatever they are."""
_SURELY_SHORT, _SHORT = 4, 1 << 16
"""Bytes of UTF-8, for each token of the longest sequence and at most, up to which a text is encoded as a whole."""
_PIECE = 1 << 14
"""Characters that are encoded at a time."""
_TOOLS = 4
"""Tokens of JSON to which a format may shorten tools, for one of its own."""


def check_texts(
    messages: Sequence[Mapping[str, Any]],
    origins: Sequence[str],
    tools: Sequence[Mapping[str, Any]],
    card: ModelCard,
    once: Once | None = None,
) -> None:
    """Refuses a conversation with more text than the model's longest sequence holds.

    Args:
        messages: in OpenAI's chat format, perhaps malformed.
        origins: the field of each message, for errors.
        tools: in OpenAI's chat format.
        card: the model.
        once: what is known about the messages.

    Raises:
        ApiError: 400, a text is too long; the error names the field that it came from.
        UserError: tools or arguments of calls are no JSON values.
    """

    def checked(index: int) -> int:
        # Formats join what a message says, so that many short texts of one message are as long as a single one.
        text = "".join(_texts(messages[index]))
        check_text(_field(origins[index]), text, card)
        return len(text)

    characters = (once or Once()).each("length", messages, checked)
    for total, origin in zip(itertools.accumulate(characters), origins, strict=True):
        if total > LONGEST_TOKEN * card.max_length:
            _check_characters(_field(origin), total, card)
    if tools:
        check_text("tools", to_json(list(tools)), card, shortened=_TOOLS)


def _field(origin: str) -> str:
    return origin.partition("[")[0]


def check_text(param: str, text: str, card: ModelCard, shortened: int = 1) -> None:
    """Refuses a text that is too long for the model.

    Args:
        param: the field, for the error.
        text: that will be encoded.
        card: the model.
        shortened: how many times as many tokens it may have as what is made of it.

    Raises:
        ApiError: 400, as ``check_prompt_length`` raises it.
    """
    _check_characters(param, len(text), card, shortened)
    if len(text) * (1 if text.isascii() else 4) <= min(_SURELY_SHORT * card.max_length, _SHORT):
        return
    # Where a text is cut, a piece may have some tokens more than the text has there.
    limit = shortened * card.max_length * 5 // 4 + 64
    tokens = 0
    for begin in range(0, len(text), _PIECE):
        tokens += len(card.tokenizer.encode(text[begin : begin + _PIECE]))
        if tokens > limit:
            check_prompt_length(param, tokens // shortened, card)


def _check_characters(param: str, characters: int, card: ModelCard, shortened: int = 1) -> None:
    if characters > LONGEST_TOKEN * shortened * card.max_length:
        check_prompt_length(param, characters // LONGEST_TOKEN, card)
        raise ApiError(400, f"{param} is too long", param=param, code="context_length_exceeded")


def _texts(message: Any) -> Iterator[str]:
    """The texts that a chat format renders of a message, wherever a client may have put one."""
    if not isinstance(message, Mapping):
        return
    content = message.get("content")
    parts = content if isinstance(content, list | tuple) else [content]
    texts = [part for part in parts if not isinstance(part, Mapping)]
    texts += [part.get(name) for part in parts if isinstance(part, Mapping) for name in ("text", "thinking")]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list | tuple) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        texts += function_of(call) if isinstance(function, Mapping) and isinstance(function.get("name"), str) else ()
        texts += [call.get("id")] if isinstance(call, Mapping) else []
    texts += [message.get(name) for name in ("reasoning_content", "name", "tool_call_id")]
    yield from (text for text in texts if isinstance(text, str))
