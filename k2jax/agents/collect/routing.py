"""Which of several engines gets a request: the one that has most of its prompt in the cache, unless it is too busy.

This is cache-aware scheduling (KAT-Coder-V2, section 3.2). What an engine has in its cache is not asked for but
followed: the blocks of tokens that were sent to it and came from it, of which the engine forgets those that were not
used for longest. A wrong guess costs time, never a wrong token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

import numpy as np

Policy = Literal["cache_aware", "round_robin"]
BLOCK = 64
"""Tokens of a block: what shorter prefixes share is computed faster than it is looked for."""


class KnownBlocks:
    """Blocks in one engine's cache, by the hash of everything up to their ends; the one unused for longest first."""

    def __init__(self, most: int):
        self._most = most
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
        while len(self._blocks) > self._most:
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
        self._known = [KnownBlocks(max(1, tokens // BLOCK)) for _ in range(engines)]

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
            engine = max(free, key=lambda each: (self._known[each].cached(chain), -self.running[each], -each))
        cached = self._known[engine].cached(chain) * BLOCK
        self._known[engine].add(chain)
        self.running[engine] += 1
        self.cached_tokens += cached
        self.prompt_tokens += len(prompt)
        return engine, cached

    def done(self, engine: int, sequence: np.ndarray | None = None) -> None:
        """A request has ended; ``sequence`` int32 ``[T]``, prompt and completion, is what its engine now has."""
        self.running[engine] -= 1
        if sequence is not None:
            self._known[engine].add(chained_blocks(sequence))


def chained_blocks(tokens: np.ndarray) -> list[int]:
    """Hashes of whole blocks, each of everything up to its end."""
    data = np.ascontiguousarray(tokens, "<i4")
    chain, before = [], 0
    for begin in range(0, len(data) - BLOCK + 1, BLOCK):
        before = hash((before, data[begin : begin + BLOCK].tobytes()))
        chain.append(before)
    return chain


def shared_instances(engines: int, queues: Sequence[float], now: Sequence[int]) -> list[int]:
    """How many engines serve each role (orchestrator, sub-agents), following the roles' queues.

    The ratio moves by one engine at a time, and only where that brings it nearer to the queues' ratio by more than
    half an engine, so that it does not swing. Every role keeps one engine.

    Args:
        engines: how many there are, at least as many as roles.
        queues: tokens or requests that wait or run, of each role.
        now: engines of each role; they sum to ``engines``.
    """
    if sum(now) != engines or min(now) < 1 or len(queues) != len(now):
        raise ValueError("each role has at least one engine, and together they have all")
    total = sum(queues)
    if total <= 0:
        return list(now)
    wanted = [max(1.0, engines * queue / total) for queue in queues]
    shortage = [want - have for want, have in zip(wanted, now, strict=True)]
    most = int(np.argmax(shortage))
    least = min((role for role in range(len(now)) if now[role] > 1), key=lambda role: shortage[role], default=most)
    if most == least or shortage[most] <= 0.5 or shortage[least] >= -0.5:
        return list(now)
    return [have + (role == most) - (role == least) for role, have in enumerate(now)]
