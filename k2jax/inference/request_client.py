"""What clients over an engine in this process have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
import dataclasses

import numpy as np

from k2jax.client import Client, Completion, OnToken, Sampling, check_scored
from k2jax.inference.media import PlacedChunk
from k2jax.inference.request import Request

SCORING = Sampling(max_tokens=1, temperature=0.0, prompt_logprobs=True)
"""Asks for the log-probabilities of a prompt; the one token that is drawn with them is not read."""


class RequestClient(Client):
    """A client whose generations are requests of an engine."""

    @abstractmethod
    async def run_request(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
        media: Sequence[PlacedChunk] = (),
    ) -> tuple[Request, Completion]:
        """Waits for a request; arguments and errors as of ``generate``."""

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
        media: Sequence[PlacedChunk] = (),
    ) -> Completion:
        """Generates after a prompt with ``media``, see ``Engine.make_request``; see ``Client.generate``.

        Raises:
            UserError: a prompt or sampling parameter that the engine refuses; of a client in lockstep, a caller that is
                no participant, or that waits for another generation already.
            RuntimeError: the engine has failed or stopped.
        """
        _, completion = await self.run_request(prompt, sampling, resume=resume, on_token=on_token, media=media)
        return completion

    async def score(self, ids: Sequence[int], start: int, media: Sequence[PlacedChunk] = ()) -> np.ndarray:
        """Log-probabilities of given tokens in one prefill, without what is known of a prefix; see ``Client.score``.

        Errors are those of ``generate``.
        """
        check_scored(ids, start)
        asked = dataclasses.replace(SCORING, scored_from=start)
        request, _ = await self.run_request(ids, asked, media=media)
        return np.array(request.prompt_logprobs, np.float32)[start - 1 :]
