"""What every user of a language model asks it for, whoever answers.

``Sampling`` goes in, ``Completion`` comes out, ``Client`` is the call between them. Two clients need no engine in the
process: ``ScriptedClient`` for tests, ``HTTPClient`` for servers. ``ChatEndpoint`` asks any server for text alone.
``k2jax.inference.client`` has those over an engine. This package imports numpy and no jax: processes that hold
environments, gateways and judges import it.

In reading order: ``token_constraint`` (a grammar that an answer obeys), ``types`` (all of that), ``scripted``,
``http``, ``text_apis`` (the APIs of servers), ``chat_endpoint``, ``keys`` (API keys of servers), ``addresses`` (which
belong to the internet).
"""

from k2jax.client.chat_endpoint import ChatAnswer, ChatEndpoint
from k2jax.client.http import HTTPClient, ServerFailedError
from k2jax.client.scripted import ScriptedClient, cut_reply
from k2jax.client.text_apis import TEXT_APIS, ChatReply
from k2jax.client.token_constraint import TokenConstraint
from k2jax.client.types import (
    MAX_BIASES,
    MAX_TOP_LOGPROBS,
    UNKNOWN_VERSION,
    Client,
    Completion,
    OnToken,
    PromptTooLongError,
    Sampling,
    check_scored,
    new_completion,
    refuse_media,
)

__all__ = [
    "MAX_BIASES",
    "MAX_TOP_LOGPROBS",
    "TEXT_APIS",
    "UNKNOWN_VERSION",
    "ChatAnswer",
    "ChatEndpoint",
    "ChatReply",
    "Client",
    "Completion",
    "HTTPClient",
    "OnToken",
    "PromptTooLongError",
    "Sampling",
    "ScriptedClient",
    "ServerFailedError",
    "TokenConstraint",
    "check_scored",
    "cut_reply",
    "new_completion",
    "refuse_media",
]
