"""The interface of a dialect: what a server needs to know of one endpoint's request and response format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from k2jax.api.detokenize import Delta
from k2jax.api.model_card import ModelCard
from k2jax.api.requests import GenerationRequest


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

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Returns the chunks that a delta adds to a streamed response; there may be none."""

    def closing_chunks(self, usage: PromptUsage) -> list[dict[str, Any] | str]:
        """Returns the chunks that end a stream, after every choice has ended; see ``encoding.encode_event``."""


class Dialect(NamedTuple):
    """The format of one endpoint.

    Attributes:
        path: route of the endpoint, for example ``/v1/completions``.
        parse: turns a parsed JSON body into a request; raises ApiError that names a wrong field.
        respond: starts the response to a request.
    """

    path: str
    parse: Callable[[Any, ModelCard], GenerationRequest]
    respond: Callable[[GenerationRequest, ModelCard], DialectResponse]
