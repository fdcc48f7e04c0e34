"""A client of several engines: each request goes where the router sends it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from k2jax.agents.collect.routing import Router, shared_instances
from k2jax.client import Client, Completion, OnToken, Sampling

REVIEW = 64
"""Requests after which the engines are divided anew between the roles."""
ROLES = 2
"""Orchestrators, and the sub-agents that they start."""


class RoutedClient:
    """Generates with one of several engines, all of which have the same weights.

    ``generate`` is for orchestrators. From the first request of a sub-agent on, each role has engines of its own, so
    that short requests of many sub-agents do not push the long contexts of orchestrators out of the caches. The ratio
    follows the requests that each role has under way (Kimi K2.5, appendix D), counted in requests and not in time.

    Args:
        clients: of the engines.
        router: for as many.

    Attributes:
        instances: engines of each role; all are the orchestrators' while there is no sub-agent.
        subagents: the same engines for sub-agents.
    """

    def __init__(self, clients: Sequence[Client], router: Router):
        if len(clients) != len(router.running):
            raise ValueError(f"{len(clients)} clients for a router of {len(router.running)} engines")
        self._clients, self._router = clients, router
        self.instances = [len(clients), 0]
        self.subagents: Client = _SubagentClient(self)
        self._running, self._queues, self._requests = [0] * ROLES, np.zeros(ROLES), 0

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        """Generates after a prompt; see ``Client.generate``."""
        return await self.generate_as(0, prompt, sampling, resume=resume, on_token=on_token)

    async def generate_as(
        self,
        role: int,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None,
        on_token: OnToken | None,
    ) -> Completion:
        """Generates for a role: 0 for orchestrators, 1 for sub-agents; see ``Client.generate``."""
        self._running[role] += 1
        self._review(role)
        prompt_P = np.asarray(prompt, np.int32)
        engine, _ = self._router.choose(prompt_P, self._engines(role))
        sequence = None
        try:
            completion = await self._clients[engine].generate(prompt, sampling, resume=resume, on_token=on_token)
            sequence = np.concatenate([prompt_P, completion.tokens])
        finally:
            self._running[role] -= 1
            self._router.done(engine, sequence)
        return completion

    def _engines(self, role: int) -> Sequence[int]:
        """The engines of a role: the first ones are the orchestrators'."""
        orchestrators = self.instances[0]
        return range(orchestrators) if role == 0 else range(len(self._clients) - self.instances[1], len(self._clients))

    def _review(self, role: int) -> None:
        """Counts a request, and moves an engine to the other role where the queues ask for it."""
        if len(self._clients) == 1:
            self.instances = [1, 1]
            return
        if role and not self.instances[1]:
            self.instances = [len(self._clients) - 1, 1]
        self._requests += 1
        self._queues += (np.array(self._running) - self._queues) / REVIEW
        if self._requests % REVIEW == 0 and self.instances[1]:
            self.instances = shared_instances(len(self._clients), self._queues.tolist(), self.instances)


class _SubagentClient:
    """The second role of a routed client."""

    def __init__(self, routed: RoutedClient):
        self._routed = routed

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        return await self._routed.generate_as(1, prompt, sampling, resume=resume, on_token=on_token)
