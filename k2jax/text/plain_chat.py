"""Questions and answers without markup, for models whose vocabulary has no chat tokens, e.g. of characters."""

from __future__ import annotations

from collections.abc import Sequence

from k2jax.errors import UserError
from k2jax.text.common_chat import BEGINNING, ChatFormat, MessageContext, Tools
from k2jax.text.media import content_ids
from k2jax.text.messages import Message, tool_calls
from k2jax.text.tokenizer import Tokenizer

_ORDER = ("user", "assistant")


class PlainChat(ChatFormat):
    """Each turn is the beginning-of-document token, the user's text, the assistant's, and the end-of-document token.

    Nothing stands between the two texts, so that questions and answers alternate.
    """

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer, tokenizer.eos)
        self._begin = tokenizer.encode_document("")

    def declare_tools(self, tools: Tools) -> list[int]:
        """Raises UserError, because there is no markup for tools."""
        raise UserError("the plain chat format has no tools; omit them, or use a tokenizer with chat tokens")

    def render(self, message: Message, context: MessageContext = BEGINNING) -> list[int]:
        """Returns the message's text, after the beginning-of-document token if it is the user's."""
        if tool_calls(message):
            self.declare_tools([])
        ids = content_ids(self._tokenizer, message)
        return [*self._begin, *ids] if message["role"] == "user" else ids

    def closing(self, role: str) -> list[int]:
        """Returns the ``end`` of the assistant's message; the user's has none."""
        return [self.end] if role == "assistant" else []

    def check_order(self, roles: Sequence[str], tools: Tools) -> None:
        """Raises UserError unless messages of the user and of the assistant alternate, the user's first."""
        if any(role != _ORDER[place % 2] for place, role in enumerate(roles)):
            raise UserError(
                f"in the plain chat format the user asks and the assistant answers in turn, not {', '.join(roles)}; "
                "use a tokenizer with chat tokens"
            )
