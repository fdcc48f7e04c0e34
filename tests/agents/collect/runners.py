"""A runner of episodes without a model: what a task's domain says happens to it."""

import asyncio
import dataclasses
import os

import numpy as np

from k2jax.agents.collect.worker import Waits
from k2jax.agents.task import Task
from k2jax.errors import InfrastructureError, UserError
from k2jax.trajectory import Node, Reward, Trajectory
from k2jax.trajectory.steps import POLICY

FOLDER = "K2JAX_TEST_ROLLOUT_FOLDER"


class BrokenError(InfrastructureError):
    """Whatever failed, the task is not to blame."""


def task(name: str, domain: str = "good") -> Task:
    return Task(name, domain, (), "")


def expected(key, name: str) -> Trajectory:
    """What an episode comes to: a function of its key and its task alone."""
    trajectory = Trajectory(name, "good", key, status="finished", reward=Reward(key[2] / 2))
    tokens = np.arange(key[1] + 1, dtype=np.int32)
    logprobs = -np.arange(key[1] + 1, dtype=np.float32)
    count = len(tokens)
    trajectory.add(
        Node(-1, tokens, np.ones(count, bool), logprobs, versions=np.zeros(count, np.int64), turn=0, finish="stop")
    )
    return trajectory


class ScriptedRunner:
    """Options: ``seconds`` that an episode takes."""

    roles = (POLICY,)

    def __init__(self, seconds: float):
        self._seconds = seconds

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        pass

    async def run(self, key, written, trajectory, spawner):
        kind, task = written.kind, written.task
        if task.domain == "user mistake":
            raise UserError("a mistake of the user")
        if task.domain == "endless":
            try:
                await asyncio.sleep(1000)
            finally:
                _first_time((*key, *spawner.path, "stopped"))
        if task.domain == "starts":
            return await _started_others(key, kind, task, spawner), Waits()
        await asyncio.sleep(self._seconds * (1 + key[1] % 3))
        if task.domain == "broken" or (task.domain == "broken once" and _first_time(key)):
            raise BrokenError("no luck")
        whole = expected(key, task.id)
        if spawner.path:
            whole.metadata = {"path": list(spawner.path), "kind": kind}
        if task.domain == "pauses" and trajectory is None:
            whole.status, whole.reward, whole.nodes = "unfinished", None, []
        elif task.domain == "pauses":
            assert trajectory.status == "unfinished" and trajectory.key == key
        return whole, Waits()


async def _started_others(key, kind, task, spawner):
    """An episode whose tokens are the numbers of tokens of those that it started: of domains ``task.tools``, once."""
    domains = ["good" if spawner.path else each for each in task.tools]
    parts = (dataclasses.replace(task, id=f"{task.id}/{n}", domain=each) for n, each in enumerate(domains))
    results = await asyncio.gather(*(spawner.spawn(part, f"part {n}") for n, part in enumerate(parts)))
    results = [trajectory for _, trajectory in results]
    assert [each.metadata["path"] for each in results] == [[*spawner.path, n] for n in range(len(results))]
    assert [each.metadata["kind"] for each in results] == [f"part {n}" for n in range(len(results))]
    whole = Trajectory(task.id, task.domain, key, status="finished", reward=Reward(key[2] / 2))
    whole.metadata = {"path": list(spawner.path), "kind": kind}
    whole.add(Node.observed(-1, [each.nodes[0].tokens.size for each in results]))
    return whole


def _first_time(key) -> bool:
    path = os.path.join(os.environ[FOLDER], "-".join(map(str, key)))
    if os.path.exists(path):
        return False
    open(path, "w").close()
    return True
