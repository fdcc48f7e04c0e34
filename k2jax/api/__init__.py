"""The HTTP API's dialects without the HTTP: request bodies in, response bodies and streamed chunks out.

A server or a gateway parses a body with a ``Dialect``, generates tokens for each choice of the ``GenerationRequest``,
turns them into ``Delta`` records with a ``Detokenizer`` and renders these with the dialect's response. The package
imports neither jax nor a web framework.
"""

from k2jax.api import chat, completions
from k2jax.api.detokenize import Delta, Detokenizer, GeneratedToken, PromptLogprobs
from k2jax.api.dialect import Dialect, DialectResponse, PromptUsage
from k2jax.api.errors import ApiError
from k2jax.api.model_card import ModelCard
from k2jax.api.requests import GenerationRequest

DIALECTS = (completions.DIALECT, chat.DIALECT)

__all__ = [
    "DIALECTS",
    "ApiError",
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
