"""The interface of a dialect: what a server needs to know of one endpoint's request and response format."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple, Protocol

from k2jax.agents.api.api_error import ApiError
from k2jax.agents.api.conversation import ReadConversation, render
from k2jax.agents.api.detokenize import Delta
from k2jax.agents.api.encoding import NamedEvent
from k2jax.agents.api.model_card import ModelCard
from k2jax.agents.api.requests import GenerationRequest


class PromptUsage(NamedTuple):
    """Prompt tokens of one HTTP request; a prompt counts once, however many choices it has.

    Attributes:
        tokens: number of prompt tokens.
        cached: how many of them came from the prefix cache.
    """

    tokens: int
    cached: int


class DialectResponse(Protocol):
    """The response to one HTTP request, complete or streamed."""

    def add(self, delta: Delta) -> None:
        """Adds a delta to a complete response."""

    def body(self, usage: PromptUsage) -> dict[str, Any]:
        """Returns the body of a complete response, after every choice has ended."""

    def chunks(self, delta: Delta) -> list[dict[str, Any] | NamedEvent]:
        """Returns the chunks that a delta adds to a streamed response; there may be none."""

    def closing_chunks(self, usage: PromptUsage) -> list[dict[str, Any] | NamedEvent | str]:
        """Returns the chunks that end a stream, after every choice has ended; see ``encoding.encode_event``."""


def openai_error(error: ApiError) -> dict[str, Any]:
    """The body of an error response in OpenAI's format, and the event that ends a stream."""
    return error.body


KEEP_ALIVE = b": keep-alive\n\n"
"""A comment of server-sent events, which every parser leaves out."""


@dataclasses.dataclass(frozen=True)
class Dialect:
    """The format of one endpoint.

    Attributes:
        path: route of the endpoint, for example ``/v1/completions``.
        parse: turns a parsed JSON body into a request; raises ApiError that names a wrong field.
        respond: starts the response to a request.
        read: of a chat dialect, reads the conversation of a body without encoding it; None for a dialect of texts.
        history: the field of a body that holds the messages.
        error_body: body of an error response.
        error_event: last event of a stream that fails.
        keep_alive: what a stream that has nothing to say is kept open with.
    """

    path: str
    parse: Callable[[Any, ModelCard], GenerationRequest]
    respond: Callable[[GenerationRequest, ModelCard], DialectResponse]
    _: dataclasses.KW_ONLY
    read: ReadConversation | None = None
    history: str = "messages"
    error_body: Callable[[ApiError], dict[str, Any]] = openai_error
    error_event: Callable[[ApiError], dict[str, Any] | NamedEvent] = openai_error
    keep_alive: bytes = KEEP_ALIVE


def chat_dialect(
    path: str,
    respond: Callable[[GenerationRequest, ModelCard], DialectResponse],
    read: ReadConversation,
    **options: Any,
) -> Dialect:
    """Returns the dialect of an endpoint whose bodies hold conversations; see ``Dialect``."""
    return Dialect(path, lambda body, card: render(read(body, card), card), respond, read=read, **options)
