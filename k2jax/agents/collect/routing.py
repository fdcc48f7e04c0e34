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
        engines: how many there are at first.
        policy: ``cache_aware``, or ``round_robin`` for comparison.
        bound: by how many requests an engine may be busier than the least busy one and still be chosen.
        tokens: that each engine's cache holds.

    Attributes:
        running: requests that each engine has.
        cached_tokens: tokens of prompts that were taken to be in the chosen engine's cache.
        prompt_tokens: tokens of all prompts.
    """

    def __init__(self, engines: int, policy: Policy = "cache_aware", *, bound: int = 16, tokens: int = 1 << 20):
        self.running: list[int] = []
        self.cached_tokens = self.prompt_tokens = 0
        self._policy, self._bound, self._next = policy, bound, 0
        self._blocks, self._caches = max(1, tokens // BLOCK), []
        for _ in range(engines):
            self.add()

    def add(self) -> int:
        """Another engine, whose cache is empty; returns its number, which no other one gets."""
        self.running.append(0)
        self._caches.append(KnownBlocks(self._blocks))
        return len(self.running) - 1

    def forget(self, engine: int) -> None:
        """What an engine has in its cache is of no use: it is gone, or its weights are others."""
        self._caches[engine] = KnownBlocks(self._blocks)

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


class RoleShares:
    """How many of several engines serve each role: all of them the orchestrators until a sub-agent first asks.

    From then on each role has engines of its own, so that short requests of many sub-agents do not push the long
    contexts of orchestrators out of the caches. The ratio follows the requests that each role has under way (Kimi K2.5,
    appendix D), counted in requests and not in time.

    Args:
        engines: how many there are at first.

    Attributes:
        instances: engines of each role; a single one serves both.
    """

    def __init__(self, engines: int):
        self._count, self.instances = engines, [engines, 0]
        self._running, self._queues, self._requests = [0] * ROLES, np.zeros(ROLES), 0

    def begun(self, role: int) -> None:
        """A role has one more request; an engine moves to the other role where the queues ask for it."""
        self._running[role] += 1
        if self._count < ROLES:
            self.instances = [self._count, self._count]
            return
        if role and not self.instances[1]:
            self.instances = [self._count - 1, 1]
        self._requests += 1
        self._queues += (np.array(self._running) - self._queues) / REVIEW
        if self._requests % REVIEW == 0 and self.instances[1]:
            self.instances = shared_instances(self._count, self._queues.tolist(), self.instances)

    def ended(self, role: int) -> None:
        """A role has one request less."""
        self._running[role] -= 1

    def resize(self, engines: int) -> None:
        """Engines have come or gone; each role that has any keeps one."""
        subagents = self.instances[1] and min(max(1, self.instances[1]), max(1, engines - 1))
        self._count, self.instances = engines, [max(0, engines - subagents), subagents]
        if engines < ROLES:
            self.instances = [engines, engines and subagents]

    def of(self, role: int, engines: Sequence[int]) -> Sequence[int]:
        """Those of a role: the first ones are the orchestrators'."""
        return engines[: self.instances[0]] if role == 0 else engines[len(engines) - self.instances[1] :]


class RoutedClient(Client):
    """Generates with one of several engines, all of which have the same weights.

    ``generate`` is for orchestrators; see ``RoleShares``.

    Args:
        clients: of the engines.
        router: for as many.

    Attributes:
        subagents: the same engines for sub-agents.
    """

    def __init__(self, clients: Sequence[Client], router: Router):
        if len(clients) != len(router.running):
            raise ValueError(f"{len(clients)} clients for a router of {len(router.running)} engines")
        self._clients, self._router, self._shares = clients, router, RoleShares(len(clients))
        self.subagents: Client = SubagentClient(self)

    @property
    def instances(self) -> list[int]:
        """Engines of each role; all are the orchestrators' while there is no sub-agent."""
        return self._shares.instances

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
        self._shares.begun(role)
        prompt_P = np.asarray(prompt, np.int32)
        engine, _ = self._router.choose(prompt_P, self._shares.of(role, range(len(self._clients))))
        sequence = None
        try:
            answer = await ask(self._clients[engine])
            sequence = np.concatenate([prompt_P, answer.tokens]) if isinstance(answer, Completion) else prompt_P
        finally:
            self._shares.ended(role)
            self._router.done(engine, sequence)
        return answer


class SubagentClient(RoutedClient):
    """The second role of a routed client.

    Args:
        routed: the client.
    """

    def __init__(self, routed: RoutedClient):
        self._routed = routed

    async def longest_sequence(self) -> int | None:
        """See ``RoutedClient``."""
        return await self._routed.longest_sequence()

    async def asked(self, role: int, prompt: Sequence[int], ask: Callable[[Client], Awaitable[Any]]) -> Any:
        """See ``RoutedClient``."""
        return await self._routed.asked(1, prompt, ask)
