"""Episodes a minute in sandboxes: with fork servers and sandboxes that are used again, and without."""

from __future__ import annotations

import contextlib
import os
import statistics
import time

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import EnvironmentMaker, Services
from k2jax.agents.registry import oracles
from k2jax.agents.sandbox.bubblewrap import BubblewrapBackend
from k2jax.agents.scorer import Scorer
from k2jax.agents.task import Task
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.bench.timing import Row, rate_row
from k2jax.errors import UserError
from k2jax.tasks.oracle_check import play_all

EPISODES = 120
"""Of one round: two commands of the agent and a test in another sandbox each."""
_AT_ONCE = 4
"""Episodes that run at once, for each processor."""


async def episodes_row(rounds: int, device: str) -> Row:
    """Medians of interleaved rounds, of which the first warms up."""
    tasks = load_tasks("commands", (f"count={EPISODES}",), "train")
    rates: dict[bool, list[float]] = {True: [], False: []}
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(VerifierPool(workers=os.cpu_count() or 1, timeout=60.0, retries=1))
        backends = {forks: BubblewrapBackend(forks=forks) for forks in rates}
        for backend in backends.values():
            stack.callback(backend.close)
        for number in range(rounds + 1):
            for forks in rates if number % 2 else reversed(rates):
                rates[forks].append(await _rate(tasks, backends[forks], pool))
    ours, alone = (statistics.median(each[1:]) for each in rates.values())
    name = "episode of the study terminal, scored"
    return rate_row(name, ours, alone, "1/min", "a bubblewrap for every command", device=device)


class _Maker(EnvironmentMaker):
    """Makes environments with sandboxes of a given backend."""

    def __init__(self, backend: BubblewrapBackend):
        super().__init__()
        self._services = Services(lambda: backend)


async def _rate(tasks: list[Task], backend: BubblewrapBackend, pool: VerifierPool) -> float:
    """Episodes a minute, all of which must earn 1."""
    maker, scorer = _Maker(backend), Scorer(pool, backend=backend)
    begun = time.perf_counter()
    played = await play_all(tasks, oracles.get("commands"), maker, scorer, _AT_ONCE * (os.cpu_count() or 1))
    if any(each.reward is None or each.reward.value != 1.0 for each in played):
        raise UserError("episodes of the commands in sandboxes fail: see python -m k2jax.env.check commands")
    return 60.0 * len(played) / (time.perf_counter() - begun)
