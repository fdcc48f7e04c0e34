"""A client of several engines: each request goes where the router sends it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from k2jax.client import Client, Completion, OnToken, Sampling
from k2jax.rollout.routing import Router


class RoutedClient:
    """Generates with one of several engines, all of which have the same weights.

    Args:
        clients: of the engines.
        router: for as many.
    """

    def __init__(self, clients: Sequence[Client], router: Router):
        if len(clients) != len(router.running):
            raise ValueError(f"{len(clients)} clients for a router of {len(router.running)} engines")
        self._clients, self._router = clients, router

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        """Generates after a prompt; see ``Client.generate``."""
        prompt_P = np.asarray(prompt, np.int32)
        engine, _ = self._router.choose(prompt_P)
        sequence = None
        try:
            completion = await self._clients[engine].generate(prompt, sampling, resume=resume, on_token=on_token)
            sequence = np.concatenate([prompt_P, completion.tokens])
        finally:
            self._router.done(engine, sequence)
        return completion
