"""Clients over an engine in this process; see ``k2jax.client.Client`` for what they have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
import contextlib
import dataclasses
from typing import Any

import numpy as np

from k2jax.client import Client, Completion, OnToken, Sampling, cut_reply, new_completion
from k2jax.inference.lockstep import LockstepClient
from k2jax.inference.media import PlacedChunk
from k2jax.inference.request import Request, RequestWatch
from k2jax.inference.request_client import SCORING, RequestClient
from k2jax.inference.worker import Worker

__all__ = ["EngineClient", "ForcedClient", "LockstepClient"]


class EngineClient(RequestClient):
    """Coroutines that generate on a worker's thread, for servers and gateways. ``on_token`` runs on that thread."""

    def __init__(self, worker: Worker):
        self._worker = worker

    async def run_request(
        self, prompt: Sequence[int], sampling: Sampling, **options: Any
    ) -> tuple[Request, Completion]:
        """See ``RequestClient``."""
        return await run_request(self._worker, prompt, sampling, **options)

    async def longest_sequence(self) -> int:
        """See ``Client.longest_sequence``."""
        return self._worker.max_length


class ForcedClient(Client):
    """Replies that the caller writes, scored by the engine: the log-probabilities of given tokens in one prefill.

    A reply ends at a stop token or after ``max_tokens``, as if the model had chosen its tokens. Prompt and reply
    together have to be shorter than the engine's longest sequence.

    Args:
        worker: of the engine.
        reply: token ids after a prompt.
    """

    def __init__(self, worker: Worker, reply: Callable[[tuple[int, ...], Sampling], Iterable[int]]):
        self._worker, self._reply = worker, reply

    async def longest_sequence(self) -> int:
        """See ``Client.longest_sequence``."""
        return self._worker.max_length

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
        media: Sequence[PlacedChunk] = (),
    ) -> Completion:
        """The scripted reply with its log-probabilities; see ``Client.generate``.

        Raises:
            UserError: a prompt or reply that the engine refuses, or a reply that does not begin as ``resume`` does.
            RuntimeError: the worker has failed or stopped.
        """
        sampling.check()
        prompt = tuple(int(token) for token in prompt)
        tokens, finish = cut_reply(self._reply(prompt, sampling), sampling, resume)
        resumed = 0 if resume is None else len(resume.tokens)
        if len(tokens) == resumed:
            return Completion(*resume[:3], finish, resume.experts) if resume else new_completion([], [], [], finish)
        scoring = dataclasses.replace(SCORING, return_experts=sampling.return_experts)
        request, scored = await run_request(
            self._worker, [*prompt, *tokens], scoring, scored_temperature=sampling.temperature or 1.0, media=media
        )
        if not len(scored.tokens):  # the engine cancelled it
            return resume._replace(finish=finish) if resume else new_completion([], [], [], scored.finish)
        logprobs = np.array(request.prompt_logprobs)[len(prompt) - 1 :]
        for i in range(resumed, len(tokens) - 1):
            if on_token is not None and on_token(tokens[i], float(logprobs[i])):
                tokens, logprobs, finish = tokens[: i + 1], logprobs[: i + 1], "stop"
                break
        else:
            if on_token is not None:
                on_token(tokens[-1], float(logprobs[-1]))
        experts = None if scored.experts is None else scored.experts[: len(prompt) + len(tokens) - 1]
        return new_completion(tokens, logprobs, [scored.versions[0]] * len(tokens), finish, resume, experts)


async def run_request(
    worker: Worker,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    resume: Completion | None = None,
    on_token: OnToken | None = None,
    scored_temperature: float = 1.0,
    media: Sequence[PlacedChunk] = (),
) -> tuple[Request, Completion]:
    """Waits for a worker to finish a request; cancelling the coroutine cancels the request.

    Args:
        worker: of the engine.
        prompt: token ids.
        sampling: how tokens are chosen.
        resume: see ``Client.generate``.
        on_token: see ``Client.generate``; it runs on the worker's thread.
        scored_temperature: see Request.
        media: see ``Engine.make_request``.

    Raises:
        UserError: a prompt or sampling parameter that the engine refuses.
        RuntimeError: the worker has failed or stopped.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Completion] = loop.create_future()

    def settle(completion: Completion | None, error: Exception | None) -> None:
        if done.done():  # cancelled meanwhile
            return
        if error is None:
            done.set_result(completion)
        else:
            done.set_exception(error)

    def deliver(completion: Completion | None, error: Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits any more
            loop.call_soon_threadsafe(settle, completion, error)

    generated = () if resume is None else resume.tokens
    watch = RequestWatch(deliver, resume, on_token)
    options = {"media": media, "on_token": watch, "scored_temperature": scored_temperature}
    request = worker.submit(prompt, sampling, generated, **options)
    try:
        completion = await done
    except asyncio.CancelledError:
        worker.cancel(request)
        raise
    if completion.finish == "cancelled" and worker.failed is not None:
        raise RuntimeError("the engine has failed") from worker.failed
    return request, completion
