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
        body = {"model": self.model, "messages": list(messages), "max_tokens": max_tokens, "temperature": temperature}
        return await self.send("/v1/chat/completions", body, self._read)

    async def _read(self, response: Any) -> ChatAnswer:
        choices = choices_of(decoded(await response.aread(), self.url), self.url)
        message = choices[0].get("message") if choices else None
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(message, Mapping) or not isinstance(content, str | None):
            raise ServerFailedError(f"{self.url} answered without a message")
        return ChatAnswer(content or "", str(choices[0].get("finish_reason") or "stop"))
