"""Histories of clients in the form that chat formats render, and answers that a client has begun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
from typing import Any

from k2jax.agents.api.api_error import bad_request
from k2jax.agents.api.fields import Fields
from k2jax.agents.api.model_card import ModelCard
from k2jax.agents.api.once import Once
from k2jax.errors import UserError
from k2jax.text.message_fields import read_message
from k2jax.text.messages import stated_reasoning


def read_history(
    messages: Sequence[Any], origins: Sequence[str], fields: Fields, card: ModelCard, once: Once | None = None
) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    """The messages of a client in the form that chat formats render, and what a lenient reader passed over.

    Args:
        messages: in any dialect of OpenAI's chat format.
        origins: the field that each came from.
        fields: of the body.
        card: the served model.
        once: what is known about the messages.

    Raises:
        ApiError: a message is wrong, or has a field that is not read.
    """
    once, thinks = once or Once(), card.chat is not None and card.chat.thinks
    read: list[Mapping[str, Any]] = []
    passed: list[str] = []
    for message, origin in zip(messages, origins, strict=True):
        find = functools.partial(_read, message, origin, fields.lenient, thinks)
        try:
            known, names = once.of(("read", origin, fields.lenient, thinks), (message,), find)
            read.append(known)
            passed += names
            _check_partial(known, origin, len(read) == len(messages))
        except UserError as error:
            raise bad_request(origin, str(error)) from None
    return tuple(read), tuple(passed)


def _read(message: Any, origin: str, lenient: bool, thinks: bool) -> tuple[Mapping[str, Any], list[str]]:
    """A message in the form that chat formats render, and what a lenient reader passed over."""
    passed: list[str] | None = [] if lenient else None
    read = read_message(message, origin, passed)
    if passed is not None and not thinks and stated_reasoning(read):
        read = {name: value for name, value in read.items() if name != "reasoning_content"}
        passed.append(f"{origin}.reasoning_content")
    return read, passed or []


def thinks_after(message: Mapping[str, Any], thinking: bool, is_asked: bool) -> bool:
    """Whether an answer begins with reasoning: not where the last message, which the model continues, has begun it.

    Args:
        message: the last one.
        thinking: whether other answers do.
        is_asked: whether the client asks for reasoning itself.

    Raises:
        ApiError: it does, and what is to be continued has none.
    """
    if message.get("partial") and is_asked and not message.get("reasoning_content"):
        text = "an answer that is begun has no reasoning after that: turn it off, or begin with reasoning_content"
        raise bad_request("messages", text)
    return thinking and not message.get("partial")


def _check_partial(message: Mapping[str, Any], origin: str, is_last: bool) -> None:
    """Refuses what cannot be continued."""
    if not message.get("partial"):
        return
    if not is_last:
        raise UserError(f"{origin} is partial: the model can continue the last message alone")
    if message.get("tool_calls") or not isinstance(message["content"], str):
        raise UserError(f"{origin} is partial and has more than a text, which the model cannot continue")
