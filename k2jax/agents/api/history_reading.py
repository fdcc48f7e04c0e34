"""Histories of clients in the form that chat formats render, and answers that a client has begun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    thinks = card.chat is not None and card.chat.thinks

    def read(index: int) -> tuple[Mapping[str, Any], list[str]]:
        passed: list[str] | None = [] if fields.lenient else None
        try:
            message = read_message(messages[index], origins[index], passed)
        except UserError as error:
            raise bad_request(origins[index], str(error)) from None
        if passed is not None and not thinks and stated_reasoning(message):
            message = {name: value for name, value in message.items() if name != "reasoning_content"}
            passed.append(f"{origins[index]}.reasoning_content")
        return message, passed or []

    pairs = (once or Once()).each("read", messages, read)
    for index, (message, _) in enumerate(pairs):
        _check_partial(message, origins[index], index == len(messages) - 1)
    return tuple(message for message, _ in pairs), tuple(name for _, passed in pairs for name in passed)


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
        raise bad_request(origin, f"{origin} is partial: the model can continue the last message alone")
    if message.get("tool_calls") or not isinstance(message["content"], str):
        raise bad_request(origin, f"{origin} is partial and has more than a text, which the model cannot continue")
