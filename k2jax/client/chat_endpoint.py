"""A client of any endpoint of text: messages in, text out. It needs no tokenizer, and gives no tokens to train on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import types
from typing import Any, NamedTuple

from k2jax.client.http import Endpoint, body_of
from k2jax.client.text_apis import TEXT_APIS, ChatReply


class ChatAnswer(NamedTuple):
    """What a model says.

    Attributes:
        text: without its reasoning, where the server parts them.
        finish: finish reason, ``stop`` or ``length``; others as the server names them.
    """

    text: str
    finish: str


class ChatEndpoint(Endpoint):
    """A server's chat completions, or another of the APIs by text that ``TEXT_APIS`` names.

    Example:
        >>> async with ChatEndpoint("http://localhost:8000", "judge") as endpoint:
        ...     answer = await endpoint.answer([{"role": "user", "content": "Hello"}], max_tokens=50)

    Args:
        url: see ``Endpoint``.
        model: see ``Endpoint``.
        api: name of the API in ``TEXT_APIS``.
        options: of ``Endpoint``.
    """

    def __init__(self, url: str, model: str, *, api: str = "chat", **options: Any):
        self._api = TEXT_APIS[api]
        super().__init__(url, model, key_header=self._api.key_header, headers=self._api.headers, **options)

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

    async def reply(self, fields: Mapping[str, Any], more: Mapping[str, Any] = types.MappingProxyType({})) -> ChatReply:
        """The model's message to a request; errors as of ``answer``.

        Args:
            fields: of a request to chat completions, ``messages`` and ``max_tokens`` among them.
            more: fields in the API's own form that replace those; None leaves one out.
        """
        body = {"model": self.model, **self._api.body(fields), **more}
        body = {name: value for name, value in body.items() if value is not None or name not in more}
        return await self.send(self._api.path, body, self._read)

    async def _read(self, response: Any) -> ChatReply:
        return self._api.read(await body_of(response, self.url), self.url)
