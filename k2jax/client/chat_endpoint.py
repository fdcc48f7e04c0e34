"""A client of any chat endpoint: messages in, text out. It needs no tokenizer, and gives no tokens to train on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from k2jax.client.http import Endpoint, ServerFailedError, choices_of, decoded


class ChatAnswer(NamedTuple):
    """What a model says.

    Attributes:
        text: without its reasoning, where the server parts them.
        finish: finish reason, ``stop`` or ``length``; others as the server names them.
    """

    text: str
    finish: str


class ChatReply(NamedTuple):
    """A whole message of a model, and what it took.

    Attributes:
        message: in OpenAI's format, with its calls of tools.
        finish: see ``ChatAnswer``.
        prompt_tokens: of the request, as the server counts them; 0 where it does not say.
        tokens: of the message, reasoning included; 0 where the server does not say.
    """

    message: Mapping[str, Any]
    finish: str
    prompt_tokens: int
    tokens: int


class ChatEndpoint(Endpoint):
    """An OpenAI-compatible server's ``/v1/chat/completions``; see ``Endpoint`` for its arguments.

    Example:
        >>> async with ChatEndpoint("http://localhost:8000", "judge") as endpoint:
        ...     answer = await endpoint.answer([{"role": "user", "content": "Hello"}], max_tokens=50)
    """

    async def answer(
        self, messages: Sequence[Mapping[str, Any]], *, max_tokens: int, temperature: float = 0.0
    ) -> ChatAnswer:
        """The model's answer to messages in OpenAI's format.

        Raises:
            ServerFailedError: the server does not answer after all attempts, or answers with what is no answer.
            PromptTooLongError: the messages are longer than the model reads.
            UserError: the server refuses the request.
        """
        reply = await self.reply({"messages": list(messages), "max_tokens": max_tokens, "temperature": temperature})
        return ChatAnswer(reply.message.get("content") or "", reply.finish)

    async def reply(self, fields: Mapping[str, Any]) -> ChatReply:
        """The model's message to a request with these fields, ``messages`` among them; errors as of ``answer``."""
        return await self.send("/v1/chat/completions", {"model": self.model, **fields}, self._read)

    async def _read(self, response: Any) -> ChatReply:
        body = decoded(await response.aread(), self.url)
        choices, usage = choices_of(body, self.url), body.get("usage")
        message = choices[0].get("message") if choices else None
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(message, Mapping) or not isinstance(content, str | None):
            raise ServerFailedError(f"{self.url} answered without a message")
        counts = [_count(usage, name) for name in ("prompt_tokens", "completion_tokens")]
        return ChatReply(message, str(choices[0].get("finish_reason") or "stop"), *counts)


def _count(usage: Any, name: str) -> int:
    """A count of tokens; 0 where there is none."""
    count = usage.get(name) if isinstance(usage, Mapping) else None
    return count if type(count) is int and count >= 0 else 0
