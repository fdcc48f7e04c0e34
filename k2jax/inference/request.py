"""What an engine is asked for, and what it has produced so far."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
import dataclasses
import enum

import numpy as np

from k2jax.client import UNKNOWN_VERSION, Completion, OnToken, PromptTooLongError, Sampling, new_completion
from k2jax.config.schema import ModelConfig
from k2jax.errors import UserError
from k2jax.inference.adjustments import AdjustmentState
from k2jax.inference.constraints import ConstraintState
from k2jax.inference.media import PlacedChunk


class State(enum.Enum):
    """Where a request stands."""

    WAITING = "waiting"  # for a slot and pages
    RUNNING = "running"
    PAUSED = "paused"  # holds nothing but its tokens
    FINISHED = "finished"


@dataclasses.dataclass(eq=False)
class Request:
    """One sequence; made by ``Engine.submit``.

    The results are compact arrays that grow by appending; none of them holds a Python object per token.

    Attributes:
        prompt: token ids, at least one.
        sampling: see Sampling.
        on_token: called with the request after each new token, and once when it finishes without one; True ends the
            request with finish reason ``stop``. It must not block.
        media: images and chunks of video, in the order of the prompt's tokens that they stand for.
        order: rank among waiting requests where the caller sorts them, see ``Engine.sort_waiting``.
        scored_temperature: divides the logits that ``prompt_logprobs`` are computed from.
        tokens: int32, generated ones, after those that the request was submitted with.
        logprobs: float32, of ``tokens``; see ``Completion.logprobs``. NaN for those that it was submitted with.
        versions: int64, of the weights that chose each of ``tokens``; UNKNOWN_VERSION for those it was submitted with.
        free_logprobs: float32, of ``tokens`` without the constraint's mask, penalties and biases; empty for a request
            without any of them.
        constraint: where the tokens stand in the grammar that they obey; None where it asks for none.
        adjustments: what its penalties and biases are about; None where it asks for none.
        top_logprobs: of each generated token the most likely tokens (id, log-probability), best first; empty unless
            ``Sampling.top_logprobs`` asks for them.
        prompt_logprobs: float32, of ``prompt[1:]``, where asked for; see ``Sampling.scored_from``.
        prompt_top_logprobs: of each of ``prompt[1:]``, as ``top_logprobs``; empty unless both are asked for.
        experts: int16 ``[N, expert layers, active experts]`` of the first N ids that were computed, where asked for.
        finish_reason: ``stop`` (a stop token, or on_token returned True), ``length`` (max_tokens or the engine's
            longest sequence), ``cancelled``, or None.
        admitted: whether it has had a slot.
        cached_tokens: prompt tokens that came from another request's pages when it first got a slot.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    on_token: Callable[[Request], bool | None] | None = None
    media: tuple[PlacedChunk, ...] = ()
    _: dataclasses.KW_ONLY
    order: tuple[int, ...] = ()
    scored_temperature: float = 1.0
    tokens: array[int] = dataclasses.field(default_factory=lambda: array("i"))
    logprobs: array[float] = dataclasses.field(default_factory=lambda: array("f"))
    versions: array[int] = dataclasses.field(default_factory=lambda: array("q"))
    free_logprobs: array[float] = dataclasses.field(default_factory=lambda: array("f"))
    constraint: ConstraintState | None = None
    adjustments: AdjustmentState | None = None
    top_logprobs: list[tuple[tuple[int, float], ...]] = dataclasses.field(default_factory=list)
    prompt_logprobs: array[float] = dataclasses.field(default_factory=lambda: array("f"))
    prompt_top_logprobs: list[tuple[tuple[int, float], ...]] = dataclasses.field(default_factory=list)
    experts: np.ndarray | None = None
    state: State = State.WAITING
    finish_reason: str | None = None
    admitted: bool = False
    cached_tokens: int = 0

    def __post_init__(self):
        if self.sampling.is_adjusted:
            self.adjustments = AdjustmentState(self.sampling, self.prompt)

    @property
    def is_changed(self) -> bool:
        """Whether its tokens are drawn from another distribution than the model's own."""
        return self.constraint is not None or self.adjustments is not None

    @property
    def ids(self) -> list[int]:
        """Prompt and generated token ids."""
        return [*self.prompt, *self.tokens]

    @property
    def reusable(self) -> int:
        """How many of its ids may come from another request's pages: not those whose followers are to be scored."""
        sampling = self.sampling
        last = len(self.prompt) + len(self.tokens) - 1
        return min(last, sampling.scored_from - 1) if sampling.prompt_logprobs else last

    def resume_after(self, generated: list[int]) -> None:
        """Begins with tokens that were generated before, whose log-probabilities are not known here."""
        self.tokens.extend(generated)
        self.logprobs.extend([float("nan")] * len(generated))
        self.versions.extend([UNKNOWN_VERSION] * len(generated))
        if self.is_changed:
            self.free_logprobs.extend([float("nan")] * len(generated))
        for token in generated:
            self._follow(token)

    def append(self, token: int, logprob: float, version: int, free_logprob: float | None = None) -> None:
        """Adds a generated token.

        Args:
            token: its id.
            logprob: of the distribution that it was drawn from.
            version: of the weights that chose it.
            free_logprob: without mask, penalties and biases; None where there were none.
        """
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if self.is_changed:
            self.free_logprobs.append(logprob if free_logprob is None else free_logprob)
        self._follow(token)

    def _follow(self, token: int) -> None:
        for state in (self.constraint, self.adjustments):
            if state is not None:
                state.take(token)

    @property
    def failure(self) -> str:
        """Why its constraint lets no token follow, in one line; empty where that is not so."""
        return "" if self.constraint is None else self.constraint.failure

    @property
    def closed(self) -> str | None:
        """The finish reason of a request whose constraint lets no token follow, or None."""
        if self.constraint is None or not self.constraint.is_over:
            return None
        return "cancelled" if self.failure else "stop"

    @property
    def is_masked(self) -> bool:
        """Whether each of its tokens decides which ones may be next, so that a program draws one at a time."""
        return self.constraint is not None and self.constraint.applies

    def max_new_tokens(self, max_length: int) -> int:
        """The most tokens that it may still generate, of an engine whose longest sequence is ``max_length``."""
        return min(self.sampling.max_tokens, max_length - len(self.prompt)) - len(self.tokens)

    def reached_end(self, max_length: int) -> str | None:
        """The finish reason that the tokens so far give, or None.

        Args:
            max_length: the engine's longest sequence.
        """
        if self.tokens and self.tokens[-1] in self.sampling.stop_tokens:
            return "stop"
        return "length" if self.max_new_tokens(max_length) <= 0 else None

    def completion(self, resume: Completion | None = None, finish: str | None = None) -> Completion:
        """The tokens so far as arrays.

        Args:
            resume: the completion whose tokens the request was submitted with.
            finish: finish reason; by default the request's own.
        """
        experts = None
        if self.experts is not None:
            experts = self.experts[: len(self.prompt) + len(self.tokens) - 1]
        finish = finish or self.finish_reason or "cancelled"
        free = self.free_logprobs if self.is_changed else None
        return new_completion(self.tokens, self.logprobs, self.versions, finish, resume, experts, free_logprobs=free)


class RequestWatch:
    """The ``on_token`` of a request that a coroutine waits for.

    Args:
        deliver: called once on the engine's thread, with the completion or with what ``on_token`` raised.
        resume: the completion whose tokens the request is submitted with.
        on_token: the caller's, see ``k2jax.client.OnToken``.
    """

    def __init__(
        self,
        deliver: Callable[[Completion | None, Exception | None], None],
        resume: Completion | None = None,
        on_token: OnToken | None = None,
    ):
        self._deliver, self._resume, self._on_token = deliver, resume, on_token
        self._seen = 0 if resume is None else len(resume.tokens)

    @property
    def may_stop(self) -> bool:
        """Whether the caller may end the request before its sampling does."""
        return self._on_token is not None

    def __call__(self, request: Request) -> bool:
        """Takes what is new in a request; True ends it."""
        new, self._seen = len(request.tokens) > self._seen, len(request.tokens)
        try:
            ends = bool(new and self._on_token and self._on_token(request.tokens[-1], request.logprobs[-1]))
        except Exception as error:  # the caller's, which must not end the engine
            self._deliver(None, error)
            return True
        if request.failure:
            self._deliver(None, UserError(request.failure))
        elif request.state == State.FINISHED:
            self._deliver(request.completion(self._resume), None)
        elif ends:
            self._deliver(request.completion(self._resume, "stop"), None)
        return ends


def _plain(ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(ids.tolist() if isinstance(ids, np.ndarray) else map(int, ids))


def checked_ids(
    prompt: Sequence[int], generated: Sequence[int], sampling: Sampling, model: ModelConfig, max_length: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A prompt and what was generated after it, as an engine takes them.

    Raises:
        PromptTooLongError: the prompt is as long as the longest sequence.
        UserError: an empty prompt, an id outside the vocabulary, too many generated tokens, experts of a model without.
    """
    prompt, generated = (_plain(ids) for ids in (prompt, generated))
    if not prompt:
        raise UserError("the prompt is empty")
    if len(prompt) >= max_length:
        raise PromptTooLongError(f"the prompt has {len(prompt):,} tokens, the engine's longest sequence {max_length:,}")
    if len(generated) > min(sampling.max_tokens, max_length - len(prompt)):
        raise UserError(f"{len(generated):,} generated tokens are more than the request may have")
    ids = (*prompt, *generated, *(token for token, _ in sampling.logit_bias))
    if min(ids) < 0 or max(ids) >= model.vocab:
        outside = next(token for token in ids if not 0 <= token < model.vocab)
        raise UserError(f"token id {outside} is outside the vocabulary of {model.vocab:,}")
    if sampling.return_experts and model.layers == model.dense_layers:
        raise UserError("return_experts is asked for, and the model has no experts")
    return prompt, generated
