"""The completions dialect: ``/v1/completions`` in OpenAI's format."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any, ClassVar

from k2jax.agents.api.answer_grammars import constrain, read_value
from k2jax.agents.api.api_error import bad_request, unsupported
from k2jax.agents.api.detokenize import Delta, ScoredToken
from k2jax.agents.api.dialect import Dialect
from k2jax.agents.api.fields import Fields, invalid_value
from k2jax.agents.api.lengths import check_text
from k2jax.agents.api.model_card import ModelCard
from k2jax.agents.api.requests import (
    IGNORED,
    GenerationRequest,
    api_errors,
    check_prompt_length,
    check_room,
    read_options,
)
from k2jax.agents.api.response_builder import ResponseBuilder, ResponseChoice, finite
from k2jax.client import MAX_TOP_LOGPROBS
from k2jax.errors import abbreviate

DEFAULT_MAX_TOKENS = 16  # OpenAI's
_NEUTRAL = {"suffix": None}
_PROMPT_TYPES = "text, token ids, or a list of either"


def parse_completion(body: Any, card: ModelCard) -> GenerationRequest:
    """Parses the body of a completions request.

    Raises:
        ApiError: a field is wrong, unknown or not supported; the error names it.
    """
    with api_errors():
        fields = Fields(body)
        card.check_name(fields.text("model"))
        prompt, with_bos = fields.take("prompt"), fields.flag("add_special_tokens", True)
        echo = fields.flag("echo")
        top_logprobs = fields.integer("logprobs", None, 0, MAX_TOP_LOGPROBS)
        limit = fields.integer("max_tokens", None, 0)
        max_tokens = DEFAULT_MAX_TOKENS if limit is None else limit
        if max_tokens == 0 and not echo:
            raise bad_request("max_tokens", "max_tokens 0 makes sense only with echo")
        logprobs = top_logprobs is not None
        ends = () if fields.flag("ignore_eos") else (card.tokenizer.eos,)
        options = read_options(
            fields,
            card,
            stop_tokens=(*ends, *_stop_token_ids(fields.take("stop_token_ids", []))),
            top_logprobs=top_logprobs or 0,
            prompt_logprobs=echo and logprobs,
        )
        if fields.integer("best_of", options.n) != options.n:
            raise unsupported("best_of")
        value = read_value(fields)
        fields.finish(IGNORED, _NEUTRAL)
        prompts = _encode_prompts(prompt, card, with_bos)
        options = dataclasses.replace(options, prompts=prompts, max_tokens=max_tokens, logprobs=logprobs, echo=echo)
        options = constrain(options, card, value)
        return options if limit is None else check_room("max_tokens", options, card)


class CompletionResponse(ResponseBuilder):
    """Builds the response to a completions request."""

    ID_PREFIX, OBJECT, CHUNK_OBJECT = "cmpl-", "text_completion", "text_completion"
    EMPTY_DELTA: ClassVar[dict[str, Any]] = {"text": ""}
    PROMPT_IDS_IN_CHOICES = True

    def _message(self, choice: ResponseChoice) -> dict[str, Any]:
        return {"text": "".join(choice.texts)}

    def _message_delta(self, delta: Delta, is_first: bool) -> dict[str, Any]:
        return {"text": delta.text}

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        wants_top = self._request.sampling.top_logprobs > 0
        top = [self._top_logprobs(token) for token in tokens] if wants_top else None
        return {
            "tokens": [self._card.token_text(token.id) for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": top,
            "text_offset": [token.offset for token in tokens],
        }

    def _top_logprobs(self, token: ScoredToken) -> dict[str, float | None] | None:
        """The most likely tokens and the chosen one; None for the first token of a prompt, which nothing precedes."""
        if token.top is None:
            return None
        candidates = (*token.top, (token.id, token.logprob))
        return {self._card.token_text(candidate): finite(logprob) for candidate, logprob in candidates}


def _stop_token_ids(ids: Any) -> list[int]:
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise invalid_value("stop_token_ids", "a list of token ids", ids)
    return ids


def _encode_prompts(prompt: Any, card: ModelCard, with_bos: bool) -> tuple[tuple[int, ...], ...]:
    """Token ids of each prompt: a text, a list of ids, or a list of either."""
    is_single = isinstance(prompt, str) or (isinstance(prompt, list) and prompt and type(prompt[0]) is int)
    prompts = [prompt] if is_single else prompt
    if not isinstance(prompts, list) or not prompts:
        raise invalid_value("prompt", _PROMPT_TYPES, prompt)
    encode = card.tokenizer.encode_document if with_bos else card.tokenizer.encode
    encoded = []
    for item in prompts:
        if isinstance(item, str):
            check_text("prompt", item, card)
        ids = encode(item) if isinstance(item, str) else _check_ids(item, card)
        if not ids:
            raise bad_request("prompt", "a prompt is empty")
        check_prompt_length("prompt", len(ids), card)
        encoded.append(tuple(ids))
    return tuple(encoded)


def _check_ids(ids: Any, card: ModelCard) -> list[int]:
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise invalid_value("prompt", _PROMPT_TYPES, ids)
    outside = next((token for token in ids if not 0 <= token < card.vocab), None)
    if outside is not None:
        raise bad_request("prompt", f"token id {abbreviate(outside)} is outside the vocabulary of {card.vocab}")
    return ids


DIALECT = Dialect("/v1/completions", parse_completion, CompletionResponse)
