"""Episodes in the run's own process: failures of machines are tried again as in workers."""

import asyncio
from types import SimpleNamespace

import pytest

from k2jax.agents.collect.queue_file import Choices, OrderedEpisode, WrittenTask
from k2jax.agents.collect.worker import Waits
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.task import Task
from k2jax.errors import InfrastructureError
from k2jax.rl.workers.worker_episodes import LocalPool
from k2jax.trajectory import Trajectory


class FailingEpisodes:
    """Fails so many times before it succeeds."""

    roles = SimpleNamespace(names=("policy",))

    def __init__(self, failures):
        self._left, self.runs = failures, 0

    async def run(self, key, written, sampling, trajectory, spawner):
        self.runs += 1
        if self.runs <= self._left:
            raise InfrastructureError("no sandbox")
        return Trajectory("a", "d", (1, 0, 0), status="finished"), Waits()


@pytest.mark.parametrize(("failures", "status", "runs"), [(0, "finished", 1), (2, "finished", 3), (3, "masked", 3)])
def test_an_episode_is_masked_when_its_infrastructure_has_failed_three_times(failures, status, runs):
    episodes, key = FailingEpisodes(failures), EpisodeKey("train", 1, 0, 0)
    choices = Choices("train", 1, 0, {"kind": {"max_tokens": 4}}, True)
    ordered = OrderedEpisode(key, WrittenTask("kind", Task("a", "d", (), ""), choices=choices))
    trajectory, _ = asyncio.run(LocalPool(episodes).run(ordered))
    assert (trajectory.status, episodes.runs) == (status, runs)
    assert ("no sandbox" in trajectory.error) == (status == "masked")
