"""Parallel requests of an agent: at the same time, except where the engine waits for its episodes."""

import asyncio

import pytest

from k2jax.agents.gateway.episode_client import EpisodeClient
from k2jax.client import Sampling, ScriptedClient
from k2jax.inference.client import EngineClient, LockstepClient


class Counting(ScriptedClient):
    """Counts the answers that are being generated at the same time."""

    def __init__(self, one_at_a_time):
        super().__init__(lambda prompt, sampling: [1, 2])
        self.one_at_a_time, self.running, self.most = one_at_a_time, 0, 0

    async def generate(self, *arguments, **options):
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return await super().generate(*arguments, **options)


@pytest.mark.parametrize(("one_at_a_time", "most"), [(False, 3), (True, 1)])
def test_parallel_requests_overlap_where_the_client_allows_it(one_at_a_time, most):
    client = Counting(one_at_a_time)

    async def run():
        agent = EpisodeClient(client)
        answers = await asyncio.gather(*(agent.generate([prompt], Sampling(max_tokens=2)) for prompt in range(3)))
        return [answer.tokens.tolist() for answer in answers], agent.waited

    answers, waited = asyncio.run(run())
    assert answers == [[1, 2]] * 3 and client.most == most and waited > 0


def test_an_engine_in_lockstep_answers_an_episode_one_at_a_time_and_others_do_not():
    made = None  # which is not asked for anything yet
    assert LockstepClient(made).one_at_a_time and not EngineClient(made).one_at_a_time
