"""Which of several engines gets a request: the one that has most of its prompt in the cache, unless it is too busy.

This is cache-aware scheduling (KAT-Coder-V2, section 3.2). What an engine has in its cache is not asked for but
followed: the blocks of tokens that were sent to it and came from it, of which the engine forgets those that were not
used for longest. A wrong guess costs time, never a wrong token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import numpy as np

from k2jax.agents.collect.instances import shared_instances
from k2jax.client import Client, Completion, OnToken, Sampling

Policy = Literal["cache_aware", "round_robin"]
BLOCK = 64
"""Tokens of a block: what shorter prefixes share is computed faster than it is looked for."""


class KnownBlocks:
    """Blocks in one engine's cache, by the hash of everything up to their ends; the one unused for longest first."""

    def __init__(self, limit: int):
        self._limit = limit
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def cached(self, chain: Sequence[int]) -> int:
        """How many blocks from the first on are there."""
        for count, block in enumerate(chain):
            if block not in self._blocks:
                return count
        return len(chain)

    def add(self, chain: Sequence[int]) -> None:
        """These blocks are used now; the last of them is the first to go, since the others are useful without it."""
        for block in reversed(chain):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._limit:
            self._blocks.popitem(last=False)


class Router:
    """Chooses engines and counts what each is asked for.

    Args:
        engines: how many there are.
        policy: ``cache_aware``, or ``round_robin`` for comparison.
        bound: by how many requests an engine may be busier than the least busy one and still be chosen.
        tokens: that each engine's cache holds.

    Attributes:
        running: requests that each engine has.
        cached_tokens: tokens of prompts that were taken to be in the chosen engine's cache.
        prompt_tokens: tokens of all prompts.
    """

    def __init__(self, engines: int, policy: Policy = "cache_aware", *, bound: int = 16, tokens: int = 1 << 20):
        if engines < 1:
            raise ValueError("a router needs at least one engine")
        self.running = [0] * engines
        self.cached_tokens = self.prompt_tokens = 0
        self._policy, self._bound, self._next = policy, bound, 0
        self._caches = [KnownBlocks(max(1, tokens // BLOCK)) for _ in range(engines)]

    def choose(self, prompt: np.ndarray, among: Sequence[int] | None = None) -> tuple[int, int]:
        """The engine for a prompt; it has one more request until ``done``.

        Args:
            prompt: int32 ``[P]``.
            among: engines that may be chosen; all by default.

        Returns:
            The engine, and how many of the prompt's tokens it probably has.
        """
        engines, chain = range(len(self.running)) if among is None else among, chained_blocks(prompt)
        if self._policy == "round_robin":
            engine = engines[self._next % len(engines)]
            self._next += 1
        else:
            idlest = min(self.running[engine] for engine in engines)
            free = [engine for engine in engines if self.running[engine] <= idlest + self._bound]
            engine = max(free, key=lambda each: (self._caches[each].cached(chain), -self.running[each], -each))
        cached = self._caches[engine].cached(chain) * BLOCK
        self._caches[engine].add(chain)
        self.running[engine] += 1
        self.cached_tokens += cached
        self.prompt_tokens += len(prompt)
        return engine, cached

    def done(self, engine: int, sequence: np.ndarray | None = None) -> None:
        """A request has ended; ``sequence`` int32 ``[T]``, prompt and completion, is what its engine now has."""
        self.running[engine] -= 1
        if sequence is not None:
            self._caches[engine].add(chained_blocks(sequence))


def chained_blocks(tokens: np.ndarray) -> list[int]:
    """Hashes of whole blocks, each of everything up to its end."""
    data = np.ascontiguousarray(tokens, "<i4")
    chain, before = [], 0
    for begin in range(0, len(data) - BLOCK + 1, BLOCK):
        before = hash((before, data[begin : begin + BLOCK].tobytes()))
        chain.append(before)
    return chain


REVIEW = 64
"""Requests after which the engines are divided anew between the roles."""
ROLES = 2
"""Orchestrators, and the sub-agents that they start."""


class RoutedClient(Client):
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
        media: Sequence[Any] = (),
    ) -> Completion:
        """Generates after a prompt; see ``Client.generate``."""
        options = {"resume": resume, "on_token": on_token, "media": media}
        return await self.asked(0, prompt, lambda client: client.generate(prompt, sampling, **options))

    async def score(self, ids: Sequence[int], start: int, media: Sequence[Any] = ()) -> np.ndarray:
        """Log-probabilities of given tokens; see ``Client.score``."""
        return await self.asked(0, ids, lambda client: client.score(ids, start, media))

    async def longest_sequence(self) -> int | None:
        """What every engine serves; see ``Client.longest_sequence``."""
        longest = [await client.longest_sequence() for client in self._clients]
        return min((length for length in longest if length is not None), default=None)

    async def asked(self, role: int, prompt: Sequence[int], ask: Callable[[Client], Awaitable[Any]]) -> Any:
        """What the engine answers that the router chooses.

        Args:
            role: 0 for orchestrators, 1 for sub-agents.
            prompt: token ids, by which an engine is chosen.
            ask: a call of an engine's client.
        """
        self._running[role] += 1
        self._review(role)
        prompt_P = np.asarray(prompt, np.int32)
        engine, _ = self._router.choose(prompt_P, self._engines(role))
        sequence = None
        try:
            answer = await ask(self._clients[engine])
            sequence = np.concatenate([prompt_P, answer.tokens]) if isinstance(answer, Completion) else prompt_P
        finally:
            self._running[role] -= 1
            self._router.done(engine, sequence)
        return answer

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


class _SubagentClient(RoutedClient):
    """The second role of a routed client."""

    def __init__(self, routed: RoutedClient):
        self._routed = routed

    async def longest_sequence(self) -> int | None:
        return await self._routed.longest_sequence()

    async def asked(self, role: int, prompt: Sequence[int], ask: Callable[[Client], Awaitable[Any]]) -> Any:
        return await self._routed.asked(1, prompt, ask)
