"""Over random schedules of episodes, updates and engines no token is trained on that is too old."""

import asyncio
from pathlib import Path
import tempfile

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
import numpy as np

from k2jax.agents.collect.worker import Waits
from k2jax.client import Sampling
from k2jax.trajectory import Node, Reward, Trajectory
from tests.rl.engines.members import CountingEngine, digest_of, joined, opened, until
from tests.rl.workers.test_rollouts import SteeredEpisodes, at_once, rollouts

TOKENS = 2


class PooledEpisodes(SteeredEpisodes):
    """Episodes of two answers, of which each waits until it is told to be asked for."""

    def __init__(self, pool, *sizes):
        super().__init__(*sizes)
        self._pool = pool

    async def episode(self, step, group, sample, *, greedy=False):
        trajectory = Trajectory("t", "d", (*group.key, sample), status="finished", reward=Reward(1.0))
        for turn in range(2):
            told = asyncio.get_running_loop().create_future()
            self.waiting[group.number, sample] = told
            await told
            del self.waiting[group.number, sample]
            answer = await self._pool.generate([group.number], Sampling(max_tokens=TOKENS))
            options = {"versions": answer.versions, "turn": turn, "finish": "stop"}
            logprobs = np.zeros(TOKENS, np.float32)
            trajectory.add(Node(turn - 1, answer.tokens, np.ones(TOKENS, bool), logprobs, **options))
        return trajectory, Waits(0.1, 0.2, 0.3)


async def trained_versions(data, folder, sizes, most_stale, iterations):
    """Pairs of the version that is trained and the one that chose a token of it, and how many groups were dropped."""
    engines, stale, trained = [CountingEngine("a"), CountingEngine("b")], 0, []
    async with opened(folder / "s") as (pool, _), joined(pool, folder / "s", *engines):
        episodes = PooledEpisodes(pool, *sizes, most_stale)
        options = {"ahead": 1 + most_stale, "iterations": iterations, "sampled_by": pool.sampled_by}
        opened_rollouts, _ = rollouts(folder, episodes, **options)
        pool.noticed = opened_rollouts.go_on
        opened_rollouts._on_writer = at_once

        async def act(version):
            """Something happens: an episode goes on, or an engine takes the newest weights."""
            late = [engine for engine in engines if engine.version < version]
            choice = data.draw(st.sampled_from([*sorted(episodes.waiting), *late] or [None]))
            if choice in late:
                choice.take(version)
            elif choice is not None and not episodes.waiting[choice].done():
                episodes.waiting[choice].set_result(None)
            for _ in range(10):
                await asyncio.sleep(0.0002)

        for version in range(iterations):
            await pool.need(version - most_stale)
            batch = asyncio.ensure_future(opened_rollouts.batch(version + 1))
            while not batch.done():
                await act(version)
            await pool.need(version + 1 - most_stale)
            for _ in range(data.draw(st.integers(0, 3))):  # while the trainer updates
                await act(version)
            groups = batch.result().groups
            stale += batch.result().stale
            trained += [(version, v) for g in groups for t in g.trajectories for n in t.nodes for v in n.versions]
            pool.publish(version + 1, digest_of(version + 1))
        await opened_rollouts.close()
        assert len(trained) == iterations * sizes[0] * sizes[1] * 2 * TOKENS
    await until(lambda: not pool.engines)
    return trained, stale


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(1, 2), st.integers(1, 2), st.integers(0, 2))
def test_no_token_is_trained_on_that_is_too_old_and_without_staleness_none_is_sampled_in_vain(
    data, prompts, samples, most_stale
):
    with tempfile.TemporaryDirectory() as folder:
        trained, stale = asyncio.run(trained_versions(data, Path(folder), (prompts, samples), most_stale, 4))
    assert all(version - most_stale <= chosen <= version for version, chosen in trained)
    assert most_stale or not stale
    event(f"{'some' if stale else 'none'} dropped, {'some' if any(v > c for v, c in trained) else 'none'} stale")
