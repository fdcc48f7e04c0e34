"""The data types of a generation: ``Sampling`` goes in, ``Completion`` comes out, ``Client`` is the call between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np

from k2jax.client.token_constraint import TokenConstraint
from k2jax.errors import UserError

MAX_TOP_LOGPROBS = 20
MASKED_SHARE = 0.01
"""Of a token's probability, by which a constraint, a penalty or a bias may change one that is still trained on."""
MAX_BIASES = 1024
"""Tokens of a request whose logits have a bias."""
UNKNOWN_VERSION = -1  # of the weights behind a server that does not report it


class PromptTooLongError(UserError):
    """A prompt that leaves no room for a token in the longest sequence of whoever generates."""


OnToken = Callable[[int, float], "bool | None"]
"""Called with each new token's id and log-probability, perhaps on another thread; it must not block. True ends the
completion after this token, with finish reason ``stop``."""


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the tokens of one request are chosen.

    Attributes:
        max_tokens: most tokens to generate, those that a resumed request already has included.
        temperature: divides the logits; 0 takes the most likely token.
        top_p: keeps the most likely tokens whose probabilities reach this sum; 1 keeps all.
        top_k: keeps this many of the most likely tokens; 0 keeps all.
        min_p: drops tokens less likely than this times the most likely one; 0 keeps all.
        seed: seed of this request's random numbers; the same seed, prompt and weights give the same tokens.
        stop_tokens: ids that end the request; the stop token is the last token of the completion.
        top_logprobs: number of alternatives to report per token, at most MAX_TOP_LOGPROBS.
        prompt_logprobs: also report the log-probability of every prompt token but the first, with as many alternatives.
        scored_from: number of the first prompt token whose log-probability is wanted, at least 1; those before it may
            come from another request's pages and are NaN then.
        return_experts: also report the experts that every token was routed to.
        constraint: the grammar that the completion obeys; None for any text.
        presence_penalty: subtracted from the logits of tokens that the completion has.
        frequency_penalty: the same, for each time that it has them.
        repetition_penalty: divides positive logits of tokens of prompt and completion, and multiplies negative ones.
        logit_bias: pairs (id, what is added to its logit, before the penalties).
    """

    max_tokens: int = 256
    _: dataclasses.KW_ONLY
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    scored_from: int = 1
    return_experts: bool = False
    constraint: TokenConstraint | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Sampling:
        """Of the fields as JSON has them, whose tuples are lists."""
        values = dict(values)
        if values.get("constraint") is not None:
            grammar, after, banned = values["constraint"]
            values["constraint"] = TokenConstraint(grammar, after, tuple(banned))
        values["stop_tokens"] = tuple(values.get("stop_tokens") or ())
        values["logit_bias"] = tuple((token, bias) for token, bias in values.get("logit_bias") or ())
        return cls(**values)

    @property
    def is_adjusted(self) -> bool:
        """Whether penalties or biases change logits."""
        penalties = self.presence_penalty, self.frequency_penalty, self.repetition_penalty
        return penalties != (0.0, 0.0, 1.0) or bool(self.logit_bias)

    def check(self) -> None:
        """Raises UserError for a value out of range."""
        ranges = {
            "max_tokens": self.max_tokens >= 1,
            "temperature": 0.0 <= self.temperature <= 100.0,
            "top_p": 0.0 < self.top_p <= 1.0,
            "top_k": 0 <= self.top_k < 2**31,
            "min_p": 0.0 <= self.min_p <= 1.0,
            "seed": 0 <= self.seed < 2**32,
            "top_logprobs": 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS,
            "scored_from": self.scored_from >= 1,
            "presence_penalty": -2.0 <= self.presence_penalty <= 2.0,
            "frequency_penalty": -2.0 <= self.frequency_penalty <= 2.0,
            "repetition_penalty": 0.01 <= self.repetition_penalty <= 100.0,
        }
        for name, good in ranges.items():
            if not good:
                raise UserError(f"{name} {getattr(self, name)} is out of range")
        if len(self.logit_bias) > MAX_BIASES or not all(-100.0 <= bias <= 100.0 for _, bias in self.logit_bias):
            raise UserError(f"logit_bias has more than {MAX_BIASES:,} tokens, or a bias outside -100 to 100")


class Completion(NamedTuple):
    """The tokens that a model generated after a prompt of P tokens.

    Attributes:
        tokens: int32 ``[T]``, a stop token included.
        logprobs: float32 ``[T]``, under softmax(logits / temperature) over the whole vocabulary, or over those tokens
            of it that a constraint allows, with penalties and biases; with temperature 0 under softmax(logits).
        versions: int64 ``[T]``, of the weights that chose each token; UNKNOWN_VERSION where that is not known.
        finish: ``stop`` (a stop token, or ``on_token`` returned True), ``length`` (``max_tokens`` or the engine's
            longest sequence) or ``cancelled``: the engine ended it, and ``generate(resume=...)`` continues.
        experts: int16 ``[P + T - 1, expert layers, active experts]``, the experts of every token that was fed to the
            model (the prompt and all generated tokens but the last), where ``Sampling.return_experts`` asks for them.
        free_logprobs: float32 ``[T]``, of the model alone, over the whole vocabulary, where a constraint, penalties or
            biases have changed that; else None.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    finish: str
    experts: np.ndarray | None = None
    free_logprobs: np.ndarray | None = None

    @property
    def trainable(self) -> np.ndarray:
        """Which tokens a policy is trained on, bool ``[T]``: those that are as likely as the model alone makes them.

        A trainer computes log-probabilities over the whole vocabulary and knows no mask. The gradient of a token that
        the mask has forced is zero, and where it took much of the probability, a ratio to the recorded one is none of
        two policies. Where it took less than MASKED_SHARE, both log-probabilities agree. Penalties and biases likewise.
        """
        if self.free_logprobs is None:
            return np.ones(len(self.tokens), np.bool_)
        return np.abs(self.logprobs - self.free_logprobs) <= -np.log1p(-MASKED_SHARE)


class Client:
    """Whatever generates tokens: an engine, a server, a script.

    Attributes:
        one_at_a_time: whether a caller waits for one answer before it asks for the next, as in lockstep.
    """

    one_at_a_time = False

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
        media: Sequence[Any] = (),
    ) -> Completion:
        """Generates after a prompt. Cancelling the coroutine cancels the request.

        Args:
            prompt: token ids, at least one.
            sampling: how tokens are chosen.
            resume: an unfinished completion of the same prompt and sampling; the result begins with its tokens.
            on_token: see ``OnToken``; it is not called for resumed tokens.
            media: images where they stand in the prompt, see ``inference.media.PlacedChunk``.

        Raises:
            PromptTooLongError: the prompt leaves no room for a token.
            UserError: a prompt or sampling parameter that cannot be served, or images that this client does not send.
        """
        raise NotImplementedError

    async def longest_sequence(self) -> int | None:
        """The longest sequence, prompt and answer together [tokens]; None where whoever generates does not say."""
        return None

    async def score(self, ids: Sequence[int], start: int, media: Sequence[Any] = ()) -> np.ndarray:
        """Log-probabilities of given tokens, each after all tokens before it.

        Args:
            ids: token ids.
            start: number of the first token that is scored, at least 1.
            media: see ``generate``.

        Returns:
            float32 ``[len(ids) - start]``, under softmax(logits) over the whole vocabulary.

        Raises:
            PromptTooLongError: there are more tokens than the longest sequence holds.
            UserError: this client gives no log-probabilities of given tokens.
        """
        raise UserError(f"{type(self).__name__} gives no log-probabilities of given tokens; use an engine or a server")


def check_scored(ids: Sequence[int], start: int) -> None:
    """Raises UserError where ``Client.score`` cannot score the tokens from ``start`` on."""
    if not 1 <= start < len(ids):
        raise UserError(f"{len(ids)} tokens cannot be scored from number {start} on: the first has none before it")


def refuse_media(client: Client, media: Sequence[Any]) -> None:
    """Raises UserError where there are images, for a client that sends token ids alone."""
    if media:
        raise UserError(f"{type(client).__name__} sends token ids alone, and the prompt has images; use an engine")


def new_completion(
    tokens: Sequence[int],
    logprobs: Sequence[float],
    versions: Sequence[int],
    finish: str,
    resume: Completion | None = None,
    experts: np.ndarray | None = None,
    *,
    free_logprobs: Sequence[float] | None = None,
) -> Completion:
    """A completion whose first tokens are those of ``resume``, with what is known about them there.

    Args:
        tokens: all token ids, resumed ones included.
        logprobs: of all tokens; those of resumed ones are not read.
        versions: of all tokens; those of resumed ones are not read.
        finish: finish reason.
        resume: what the request began with.
        experts: of prompt and tokens, see Completion.
        free_logprobs: of all tokens, see Completion; those of resumed ones are not read, and NaN where nobody knows
            them, as after the loss of an engine that had only reported its tokens: they are not trained on.
    """
    free = None if free_logprobs is None else np.array(free_logprobs, np.float32)
    arrays = np.array(tokens, np.int32), np.array(logprobs, np.float32), np.array(versions, np.int64)
    if resume is not None:
        resumed = len(resume.tokens)
        arrays[1][:resumed], arrays[2][:resumed] = resume.logprobs, resume.versions
        if free is not None:
            free[:resumed] = np.nan if resume.free_logprobs is None else resume.free_logprobs
        if experts is not None and resume.experts is not None:
            # The routes that chose a token are those of its own time, not of a later recomputation.
            experts = np.concatenate([resume.experts, experts[len(resume.experts) :]])
    return Completion(*arrays, finish, experts, free)
