"""The HTTP API's dialects without the HTTP: request bodies in, response bodies and streamed chunks out.

A server or a gateway parses a body with a ``Dialect``, generates tokens for each choice of the ``GenerationRequest``,
turns them into ``Delta`` records with a ``Detokenizer`` and renders these with the dialect's response. The package
imports neither jax nor a web framework.

In reading order: ``dialect``, ``requests`` with ``fields``, ``lengths``, ``model_card`` and ``media_parts``,
``detokenize``, ``response_builder``; then the dialects ``completions``, ``chat_completions``, ``responses`` with
``responses_response``, ``anthropic`` with ``anthropic_response``, and what those share: ``conversation``,
``history_reading``, ``once``, ``content_blocks``, ``encoding``, ``api_error``.
"""

from k2jax.agents.api import anthropic, completions, responses
from k2jax.agents.api import chat_completions as chat
from k2jax.agents.api.api_error import ApiError
from k2jax.agents.api.conversation import Conversation
from k2jax.agents.api.detokenize import Delta, Detokenizer, GeneratedToken, PromptLogprobs
from k2jax.agents.api.dialect import Dialect, DialectResponse, PromptUsage
from k2jax.agents.api.model_card import ModelCard
from k2jax.agents.api.requests import GenerationRequest

CHAT_DIALECTS = (chat.DIALECT, responses.DIALECT, anthropic.DIALECT)
DIALECTS = (completions.DIALECT, *CHAT_DIALECTS)

__all__ = [
    "CHAT_DIALECTS",
    "DIALECTS",
    "ApiError",
    "Conversation",
    "Delta",
    "Detokenizer",
    "Dialect",
    "DialectResponse",
    "GeneratedToken",
    "GenerationRequest",
    "ModelCard",
    "PromptLogprobs",
    "PromptUsage",
]
