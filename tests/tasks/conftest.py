"""What the tests of datasets share: policies play tasks in real environments, and verifiers score them."""

import asyncio

import pytest

from k2jax.agents.environment import EnvironmentMaker
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.scorer import Scorer
from k2jax.agents.scripted import null_policy
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.tasks.oracle_check import play_all


@pytest.fixture(scope="session")
def play():
    """``play(tasks, policy)``: scored episodes; the verifiers' processes and the sandboxes' spawner start once."""
    maker = EnvironmentMaker("bubblewrap", images="", repositories=None)
    with VerifierPool(workers=2, timeout=60.0, retries=1) as pool:
        scorer = Scorer(pool, backend=make_backend("bubblewrap"))
        yield lambda tasks, policy: asyncio.run(play_all(tasks, policy, maker, scorer, at_once=4))


@pytest.fixture(scope="session")
def check(play):
    """``check(tasks, oracle)``: the oracle earns 1 in every episode, which are returned, and doing nothing earns 0."""

    def check(tasks, oracle):
        solved = play(tasks, oracle)
        assert rewards(solved) == [1.0] * len(tasks) and rewards(play(tasks, null_policy)) == [0.0] * len(tasks)
        return solved

    return check


def rewards(episodes):
    """The value of each episode's reward, where none failed."""
    assert not [episode.error for episode in episodes if episode.error]
    return [episode.reward.value for episode in episodes]
