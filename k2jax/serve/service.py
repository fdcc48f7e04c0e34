"""Requests in progress: admission, delivery of their tokens to the event loop, and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
import contextlib
import logging
import time

from k2jax.agents.api import (
    ApiError,
    Delta,
    Detokenizer,
    GeneratedToken,
    GenerationRequest,
    ModelCard,
    PromptLogprobs,
    PromptUsage,
)
from k2jax.agents.api.api_error import bad_request, unavailable
from k2jax.agents.api.media_parts import check_media_room
from k2jax.errors import UserError
from k2jax.inference.request import Request
from k2jax.inference.stats import EngineStats
from k2jax.inference.worker import Worker

LOG = logging.getLogger("k2jax.serve")


class Service:
    """Submits the choices of requests to an engine. Its methods must be called on the event loop's thread.

    Attributes:
        card: the served model.
        closing: whether new requests are rejected because the server is shutting down.
    """

    def __init__(self, worker: Worker, card: ModelCard, max_queue: int):
        """Serves the model of ``worker``; at most ``max_queue`` choices wait for a slot."""
        self.card = card
        self.closing = False
        self._worker = worker
        self._capacity = worker.stats().slots + max_queue
        self._jobs: set[Job] = set()
        self._failure_logged = False

    def check(self) -> None:
        """Raises ApiError if no request is accepted now."""
        if self.closing:
            raise unavailable("the server is shutting down")
        if self._worker.failed is not None:
            raise unavailable("the engine has failed")

    def stats(self) -> EngineStats:
        """Returns the engine's counters."""
        return self._worker.stats()

    def start(self, request: GenerationRequest) -> Job:
        """Queues every choice of a request.

        Raises:
            ApiError: the queue is full, or the request has more choices than ever fit.
        """
        self.check()
        if request.choices > self._capacity:
            message = f"the request has {request.choices} choices; this server accepts {self._capacity} at a time"
            raise bad_request("n", message)
        if request.choices + sum(job.unfinished for job in self._jobs) > self._capacity:
            message = "too many requests are waiting; try again later"
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})
        check_media_room(request.media, (job.request.media for job in self._jobs))
        job = Job(request, self._jobs.discard)
        self._jobs.add(job)
        try:
            for choice in range(request.choices):
                self._submit(job, choice)
        except (UserError, RuntimeError) as error:
            self._discard_partial(job)
            if isinstance(error, UserError):
                raise bad_request(None, str(error)) from None
            raise unavailable("the engine has stopped") from None
        return job

    def cancel(self, job: Job) -> None:
        """Ends the unfinished choices of a job; their slots are free before the engine's next step."""
        for sequence in job.sequences:
            self._worker.cancel(sequence)

    def cancel_all(self) -> None:
        """Ends every job."""
        for job in list(self._jobs):
            self.cancel(job)

    def cancellation_error(self, job: Job) -> ApiError:
        """Returns the error for the client of a job that was cancelled."""
        if job.abandoned:  # no client reads this error, but the metrics count it
            return ApiError(499, "the client closed the connection")
        if unanswered := next((sequence.failure for sequence in job.sequences if sequence.failure), ""):
            return bad_request(None, unanswered, "constraint_failed")
        failure = self._worker.failed
        if failure is not None:
            if not self._failure_logged:
                LOG.error("the engine has failed", exc_info=failure)
            self._failure_logged = True
            return unavailable("the engine has failed")
        return unavailable("the server is shutting down")

    def _submit(self, job: Job, choice: int) -> None:
        feed = _ChoiceFeed(job, choice, self.card, asyncio.get_running_loop())
        prompt = job.request.choice_prompt(choice)
        sampling = job.request.choice_sampling(choice, self.card.max_length)
        media = job.request.media
        job.sequences.append(self._worker.submit(prompt, sampling, media=media, on_token=feed.on_token))

    def _discard_partial(self, job: Job) -> None:
        """Ends a job of which some choices could not be submitted; those will never deliver anything."""
        job.unfinished -= job.request.choices - len(job.sequences)
        self.cancel(job)
        if not job.unfinished:
            self._jobs.discard(job)


class Job:
    """One HTTP request in progress.

    Attributes:
        request: what the client asks for.
        sequences: the engine's requests, one per choice.
        unfinished: choices that the engine still works on.
        abandoned: whether the client has disconnected.
        started: time of arrival, on the clock of ``time.perf_counter`` [s].
    """

    def __init__(self, request: GenerationRequest, on_done: Callable[[Job], None]):
        self.request = request
        self.sequences: list[Request] = []
        self.unfinished = request.choices
        self.abandoned = False
        self.started = time.perf_counter()
        self._deltas: asyncio.Queue[Delta] = asyncio.Queue()
        self._on_done = on_done

    def deliver(self, delta: Delta) -> None:
        """Adds the next delta of any choice."""
        self.unfinished -= delta.finish is not None
        self._deltas.put_nowait(delta)
        if not self.unfinished:
            self._on_done(self)

    async def deltas(self) -> AsyncIterator[Delta]:
        """Yields deltas until every choice has ended."""
        unfinished = len(self.sequences)
        while unfinished:
            delta = await self._deltas.get()
            unfinished -= delta.finish is not None
            yield delta

    def prompt_usage(self) -> PromptUsage:
        """Returns the numbers of prompt tokens; a prompt counts once, however many choices it has."""
        firsts = self.sequences[:: self.request.n]
        tokens = sum(len(sequence.prompt) for sequence in firsts)
        return PromptUsage(tokens, cached=sum(sequence.cached_tokens for sequence in firsts))


class _ChoiceFeed:
    """Detokenizes one choice on the engine's thread, and delivers the deltas to the job on the event loop's thread."""

    def __init__(self, job: Job, choice: int, card: ModelCard, loop: asyncio.AbstractEventLoop):
        self._job, self._choice, self._loop = job, choice, loop
        self._detokenizer = Detokenizer(job.request, choice, card.tokenizer)
        self._read = 0  # tokens of the engine's request that were fed
        self._finished = False

    def on_token(self, sequence: Request) -> bool:
        """Feeds new tokens; returns True if the engine can end the sequence. See ``inference.request.Request``."""
        if not self._finished:
            try:
                delta = self._feed(sequence)
            except Exception:  # an exception here would end the engine, and with it every other request
                LOG.exception("the generated tokens could not be decoded")
                delta = Delta(self._choice, finish="error")
            self._finished = delta.finish is not None
            with contextlib.suppress(RuntimeError):  # the event loop has ended, so no client is left
                self._loop.call_soon_threadsafe(self._job.deliver, delta)
        return self._finished

    def _feed(self, sequence: Request) -> Delta:
        new, self._read = range(self._read, len(sequence.tokens)), len(sequence.tokens)
        top = sequence.top_logprobs
        tokens = [GeneratedToken(sequence.tokens[i], sequence.logprobs[i], top[i] if top else ()) for i in new]
        prompt = PromptLogprobs(sequence.prompt_logprobs, sequence.prompt_top_logprobs)
        return self._detokenizer.feed(tokens, sequence.finish_reason, prompt)
