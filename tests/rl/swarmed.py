"""Runs whose untrained policy is an orchestrator: what it says decides how many sub-agents get tasks, and which.

The sub-agents are a frozen checkpoint with an engine of its own, and use tools and sub-agents of theirs.
"""

import asyncio
import dataclasses
import json
import os
from pathlib import Path
import shutil

import numpy as np
import pytest

from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.registry import datasets, environments, verifiers
from k2jax.agents.task import Budget, Task
from k2jax.config import role, task
from k2jax.report.metrics import read_metrics
from k2jax.trajectory.steps import AGENT, ROLE, SPAWNED
from k2jax.trajectory.store import TrajectoryStore
from tests.rl.critic.lenient import STOPS
from tests.rl.role_folders import write_role
from tests.rl.runs import assert_equal_runs
from tests.rl.tiny import tiny_config

LIVE = "K2JAX_TEST_LIVE"
"""Variable that names a folder in which each sub-agent at work has a file."""
TURNS = 3
GROWS = 4
"""Iteration from which on a larger checkpoint answers as a sub-agent."""
PARL = {"parallel": 0.5, "finish": 0.25, "agents": 3, "hold": 0.2, "hold_until": 1.1, "decay": 0.5}
CONFIG_FILE = """
from pathlib import Path

from tests.rl.swarmed import config_of

def get_config():
    return config_of(Path(__file__).parent, setattr)
"""


class Orders:
    """Prompts of a letter; the length of the last answer decides the reward."""

    def __init__(self, split: str = "train"):
        self._letters = "abcdefgh" if split == "train" else "wxyz"

    def load(self):
        for letter in self._letters:
            yield Task(
                letter,
                "orders",
                ({"role": "user", "content": letter},),
                "share_of_low_bytes",
                environment="orchestrating",
                tools=("calculator", "swarm form=compact role=helper depth=2 steps=9"),
                budget=Budget(steps=20),
            )


class Orchestrating(ToolEnvironment):
    """Makes calls of every answer, whatever it says: one to three assignments, or of a sub-agent's one at most."""

    async def reset(self, task, seed):
        self._left, self._names, self._is_below = TURNS, 0, AGENT in task.metadata
        self._has_agents = any(tool.startswith("swarm") for tool in task.tools)
        self._mark = None
        observed = await super().reset(task, seed)  # which closes what was open before
        self._mark = mark_of(task, seed) if self._is_below else None
        return observed

    async def step(self, action):
        told, self._left = sum(action["content"].encode()), self._left - 1
        await asyncio.sleep(0.1 * self._is_below)  # so that kills meet sub-agents
        if not self._left or (self._is_below and told % 3 == 0):
            return await super().step({"role": "assistant", "content": ""})
        count = (told % 2 if self._is_below else 1 + told % 3) if self._has_agents else 0
        calls = [("calculator", {"expression": f"{told}+{self._left}"})] * self._is_below
        for _ in range(count):
            name, self._names = f"x{self._names}", self._names + 1
            calls += [("n", {"name": name}), ("a", {"agent": name, "prompt": f"{told % 10}{name}"})]
        return await super().step({"role": "assistant", "content": "", "tool_calls": [*map(called, calls)]})

    async def close(self):
        await super().close()
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)


def called(call):
    name, arguments = call
    return {"id": "0", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def mark_of(task, seed):
    """The file of a sub-agent that begins; None where nobody looks."""
    if LIVE not in os.environ:
        return None
    mark = Path(os.environ[LIVE]) / f"{os.getpid()}-{task.id.replace('/', '.')}-{seed}"
    mark.touch()
    return mark


def live(folder):
    """How many sub-agents of the runs in a folder are at work, in processes that have not been killed."""
    return sum(Path(f"/proc/{mark.name.partition('-')[0]}").exists() for mark in (folder / "live").iterdir())


def config_of(folder, setattr):
    """The editable config; ``folder`` holds the sub-agents' checkpoints, and ``setattr`` changes what the run uses."""
    from k2jax.inference import roles
    from k2jax.rl import episodes

    verifiers.add("share_of_low_bytes", "tests.rl.tiny:share_of_low_bytes")
    datasets.add("orders", "tests.rl.swarmed:Orders")
    environments.add("orchestrating", "tests.rl.swarmed:Orchestrating")
    for module in (episodes, roles):
        setattr(module, "Sampling", STOPS)  # an untrained model hardly ever ends a turn
    config = tiny_config()
    del config.rl.tasks.low
    config.rl.tasks.orders = task(dataset="orders", max_tokens=8)
    config.rl.roles.helper = role(checkpoint=f"{folder}/helper", later=(f"{folder}/large",), later_from=(GROWS,))
    config.rl.roles.helper.update({"max_tokens": 8, "slots": 16})
    config.rl.parl.update(PARL)
    config.rl.rollout.update({"token_cap": 9, "max_length": 160})  # episodes go on in later iterations, by replay
    config.data.update({"chat_format": "compact", "sequence_length": 160})
    return config


def write_run(folder, monkeypatch):
    """The config file and the checkpoints of the sub-agents; of runs from here on ``live`` counts those at work."""
    write_role(folder / "helper", 2)
    write_role(folder / "large", 3, layers=3)
    (folder / "config.py").write_text(CONFIG_FILE)
    (folder / "live").mkdir()
    monkeypatch.setenv(LIVE, str(folder / "live"))


def below(trajectory):
    """Sub-episodes of an episode at every depth."""
    for ended in trajectory.spawned.values():
        yield ended
        yield from below(ended)


def assert_had_sub_agents(workdir):
    """Each iteration has assigned tasks, whose sub-agents are stored; they have grown, and the terms have annealed."""
    records = [record for record in read_metrics(workdir) if "reward" in record]
    store, versions = TrajectoryStore(workdir / "trajectories"), []
    for record in records:
        counted = [one for one in store.read(record["step"]) if one.status != "masked"]
        assert record["swarm/assigned"] == pytest.approx(np.mean([len(one.spawned) for one in counted])) and counted
        assert record["swarm/assigned"] > 0 and record["swarm/finished"] > 0 and record["swarm/peak_max"] > 1
        assert all(set(one.metadata.get(SPAWNED, ())) == set(map(str, one.spawned)) for one in counted)
        helpers = [each for one in counted for each in below(one)]
        assert {each.metadata[ROLE] for each in helpers} == {"helper"} and any(each.spawned for each in helpers)
        nodes = [node for each in helpers for node in each.nodes if node.mask.any()]
        versions.append({int(version) for node in nodes for version in node.versions[node.mask]})
    assert 0 in versions[0] and 1 in versions[-1]
    numbers = [record["role_checkpoint/helper"] for record in records]
    assert numbers == [int(record["step"] >= GROWS) for record in records]
    weights = [record["swarm/parallel_weight"] for record in records]
    assert weights[0] == PARL["parallel"] and sorted(weights, reverse=True) == weights and weights[-1] < weights[0]


def assert_a_token_of_a_sub_agent_makes_another_run(workdir, other):
    """``assert_equal_runs`` takes a copy of a run, and refuses it when one token of one sub-agent is changed there."""
    shutil.copytree(workdir, other)
    assert_equal_runs(other, workdir)
    store = TrajectoryStore(other / "trajectories")
    step = store.steps()[-1]
    stored = list(store.read(step))
    for each in (other, workdir):  # both by one writing, so that the token alone is different
        TrajectoryStore(each / "trajectories").write(step, stored)
    assert_equal_runs(other, workdir)
    nodes = next(each for one in stored for each in below(one)).nodes
    nodes[-1] = dataclasses.replace(nodes[-1], tokens=nodes[-1].tokens ^ 1)
    store.write(step, stored)
    with pytest.raises(AssertionError):
        assert_equal_runs(other, workdir)
