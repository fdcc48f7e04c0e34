"""Whole runs with sub-agents: their metrics, the state of the annealing after a resume, and what is learned jointly."""

import asyncio
import shutil

import numpy as np
import pytest

from k2jax.agents.environment import Observation, Step
from k2jax.agents.environments.single_turn import SingleTurn
from k2jax.agents.registry import environments
from k2jax.agents.task import Task
from k2jax.report.metrics import read_metrics
from k2jax.rl import episodes
from k2jax.rl.loop import train
from k2jax.rl.updates import Trainer
from k2jax.trajectory.steps import ROLE
from k2jax.trajectory.store import TrajectoryStore
from tests.rl.critic.lenient import STOPS
from tests.rl.runs import assert_equal_runs
from tests.rl.tiny import tiny

RUN = {
    "rl.tasks.low.environment": "delegating",
    "rl.tasks.low.max_tokens": 8,
    "rl.eval_prompts": 1,
    "rl.eval_samples": 1,
    "eval.every": 1,
    "rl.parl.parallel": 0.5,
    "rl.parl.finish": 0.25,
    "rl.parl.agents": 3,
    "rl.parl.hold_until": 1.0,
    "rl.parl.decay": 0.5,
    "rl.parl.joint": "role",
    "optimizer.schedule.kind": "constant",
    "optimizer.schedule.warmup_steps": 1,
    "checkpoint.every": 1,
    "train.steps": 4,
}


class Delegating(SingleTurn):
    """Gives tasks to as many sub-agents at once as the policy's answer says, by its length; then it is over."""

    async def reset(self, task, seed):
        self._task = task
        return await super().reset(task, seed)

    async def step(self, action):
        count = len(action["content"].encode()) % 4
        said = [({"role": "user", "content": "x" * (n + 1)},) for n in range(count)]
        parts = [Task(f"{self._task.id}/{n}", "d", instruction, "") for n, instruction in enumerate(said)]
        answers = await asyncio.gather(*(self.services.spawn(part, call=n) for n, part in enumerate(parts)))
        text = " ".join(answer.answer for answer in answers)
        return Step(Observation(({"role": "user", "content": text},)), terminated=True)


@pytest.fixture(autouse=True)
def delegating():
    environments.add("delegating", "tests.rl.test_parl_runs:Delegating")


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "workers"), [("lockstep", 0), ("workers", 0), ("workers", 1)])
def test_a_run_that_was_cut_behind_the_threshold_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch, sampler, workers):
    """In lockstep bit for bit. The sub-agents are the policy, which learns from what they sampled, too."""
    trained, pack = [], Trainer.pack

    def packed(self, groups):
        updates = pack(self, groups)
        trained.append([place.response.trajectory for rows in updates.values() for place in rows.places])
        return updates

    monkeypatch.setattr(Trainer, "pack", packed)
    monkeypatch.setattr(episodes, "Sampling", STOPS)  # an untrained policy hardly ever ends a turn
    config = tiny(**RUN, **{"rl.rollout.sampler": sampler, "rl.rollout.workers": workers})
    assert train(config, tmp_path / "whole") == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "half")
    for step in (3, 4):
        shutil.rmtree(tmp_path / "half" / "checkpoints" / str(step), ignore_errors=True)
    assert train(config, tmp_path / "half") == 0
    if sampler == "lockstep":
        assert_equal_runs(tmp_path / "half", tmp_path / "whole")
    records = [record for record in read_metrics(tmp_path / "half") if "reward" in record]
    # Every iteration is as parallel as 1 at least, so that the first one ends the wait.
    assert [record["swarm/parallel_weight"] for record in records] == [0.5, 0.5, 0.25, 0.0]
    assert [record["swarm/finish_weight"] for record in records] == [0.25, 0.25, 0.125, 0.0]
    store = TrajectoryStore(tmp_path / "half" / "trajectories")
    for record in records:
        stored = list(store.read(record["step"]))
        counts = [len(one.spawned) for one in stored]
        assert record["swarm/assigned"] == pytest.approx(np.mean(counts)) == record["swarm/peak"]
        tokens = sum(child.sampled_tokens for one in stored for child in one.spawned.values())
        assert record.get("swarm/tokens/policy", 0.0) == pytest.approx(tokens / len(stored))
        assert record["swarm/parallelism"] >= 1
    assert any("eval/swarm/critical_steps" in record for record in records)
    children = [one for of_step in trained for one in of_step if ROLE in one.metadata]
    assert children and {one.metadata[ROLE] for one in children} == {"policy"}
