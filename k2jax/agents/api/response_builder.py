"""What the responses of OpenAI's chat and completions dialects share: choices, chunks, usage and token ids."""

from __future__ import annotations

import abc
from collections.abc import Sequence
import dataclasses
import math
import secrets
import time
from typing import Any, ClassVar

from k2jax.agents.api.detokenize import Delta, ScoredToken, ToolCallDelta
from k2jax.agents.api.dialect import PromptUsage
from k2jax.agents.api.encoding import DONE
from k2jax.agents.api.model_card import ModelCard
from k2jax.agents.api.requests import GenerationRequest

_LEAST_LOGPROB = -9999.0  # replaces minus infinity, which JSON cannot express


@dataclasses.dataclass
class ResponseChoice:
    """Everything that a choice has generated.

    Attributes:
        texts: pieces of text.
        reasoning: pieces of reasoning.
        calls: pieces of tool calls.
        tokens: tokens with their log-probabilities.
        finish: reason for which it ended, once it has.
        started: whether its first chunk was sent.
    """

    texts: list[str] = dataclasses.field(default_factory=list)
    reasoning: list[str] = dataclasses.field(default_factory=list)
    calls: list[ToolCallDelta] = dataclasses.field(default_factory=list)
    tokens: list[ScoredToken] = dataclasses.field(default_factory=list)
    finish: str | None = None
    started: bool = False


class ResponseBuilder(abc.ABC):
    """Builds one response: ``add`` and ``body`` for a complete one, ``chunks`` and ``closing_chunks`` for a stream.

    A dialect gives the names and the parts that differ.
    """

    ID_PREFIX: ClassVar[str]
    OBJECT: ClassVar[str]
    CHUNK_OBJECT: ClassVar[str]
    EMPTY_DELTA: ClassVar[dict[str, Any]]  # message of a chunk that has only a finish reason
    PROMPT_IDS_IN_CHOICES: ClassVar[bool]  # otherwise the prompt's token ids stand beside the choices

    def __init__(self, request: GenerationRequest, card: ModelCard):
        self._request, self._card = request, card
        self._choices = [ResponseChoice() for _ in range(request.choices)]
        self._sampled = 0  # tokens that the model has generated
        self._header = {
            "id": self.ID_PREFIX + secrets.token_hex(12),
            "object": self.CHUNK_OBJECT if request.stream else self.OBJECT,
            "created": int(time.time()),
            "model": card.name,
        }

    def add(self, delta: Delta) -> None:
        """Adds a delta to a complete response."""
        self._count(delta)
        choice = self._choices[delta.choice]
        choice.texts.append(delta.text)
        choice.reasoning.append(delta.reasoning)
        choice.calls += delta.calls
        choice.tokens += delta.tokens
        choice.finish = delta.finish

    def body(self, usage: PromptUsage) -> dict[str, Any]:
        """Returns the body of a complete response, after every choice has ended."""
        choices = [self._complete_choice(index, choice) for index, choice in enumerate(self._choices)]
        prompt_ids = {} if self.PROMPT_IDS_IN_CHOICES else self._prompt_ids(0)
        return self._header | {"choices": choices, "usage": self._usage(usage)} | prompt_ids

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Returns the chunks that a delta adds to a streamed response; there may be none."""
        self._count(delta)
        choice = self._choices[delta.choice]
        is_first, choice.started = not choice.started, True
        prompt_ids = self._prompt_ids(delta.choice) if is_first else {}
        token_ids = self._token_ids(delta.tokens)
        header = self._header | ({"usage": None} if self._request.include_usage else {})
        if self.PROMPT_IDS_IN_CHOICES:
            token_ids |= prompt_ids
        else:
            header |= prompt_ids
        logprobs = self._logprobs(delta.tokens) if self._request.logprobs and delta.tokens else None
        parts = []
        if is_first or delta.text or delta.reasoning or delta.calls or token_ids or logprobs:
            message = self._message_delta(delta, is_first)
            parts.append({**message, "logprobs": logprobs, "finish_reason": None, **token_ids})
        if delta.finish:  # in a chunk of its own, as OpenAI sends it
            parts.append({**self.EMPTY_DELTA, "logprobs": None, "finish_reason": delta.finish})
        return [header | {"choices": [{"index": delta.choice, **part}]} for part in parts]

    def closing_chunks(self, usage: PromptUsage) -> list[dict[str, Any] | str]:
        """Returns the chunks that end a stream, after every choice has ended."""
        if not self._request.include_usage:
            return [DONE]
        return [self._header | {"choices": [], "usage": self._usage(usage)}, DONE]

    @abc.abstractmethod
    def _message(self, choice: ResponseChoice) -> dict[str, Any]:
        """The message of a complete choice."""

    @abc.abstractmethod
    def _message_delta(self, delta: Delta, is_first: bool) -> dict[str, Any]:
        """The message of a streamed chunk; ``is_first`` marks the first chunk of its choice."""

    @abc.abstractmethod
    def _logprobs(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        """Log-probabilities of tokens."""

    def _complete_choice(self, index: int, choice: ResponseChoice) -> dict[str, Any]:
        logprobs = self._logprobs(choice.tokens) if self._request.logprobs else None
        result = {"index": index, **self._message(choice), "logprobs": logprobs, "finish_reason": choice.finish}
        result |= self._token_ids(choice.tokens)
        return result | (self._prompt_ids(index) if self.PROMPT_IDS_IN_CHOICES else {})

    def _token_ids(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        """Ids of the generated tokens, if the request asks for them."""
        return {"token_ids": [token.id for token in tokens if token.sampled]} if self._request.token_ids else {}

    def _prompt_ids(self, choice: int) -> dict[str, Any]:
        """Ids of the prompt of a choice, if the request asks for them."""
        if not self._request.token_ids:
            return {}
        return {"prompt_token_ids": [int(i) for i in self._request.choice_prompt(choice)]}

    def _count(self, delta: Delta) -> None:
        self._sampled += sum(token.sampled for token in delta.tokens)

    def _usage(self, prompt: PromptUsage) -> dict[str, Any]:
        return {
            "prompt_tokens": prompt.tokens,
            "completion_tokens": self._sampled,
            "total_tokens": prompt.tokens + self._sampled,
            "prompt_tokens_details": {"cached_tokens": prompt.cached},
        }


def finite(logprob: float | None) -> float | None:
    """Returns a log-probability that JSON can express; None where there is none, as of a model that computes NaN."""
    return None if logprob is None or math.isnan(logprob) else max(logprob, _LEAST_LOGPROB)
