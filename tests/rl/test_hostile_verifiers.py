"""Verifiers that loop, flood, fork or wait for a socket cost samples, and neither the run nor a reward."""

import asyncio

import numpy as np
import pytest

from k2jax.agents.registry import datasets
from k2jax.report.metrics import read_metrics
from k2jax.rl.evaluation import HeldOutTasks
from k2jax.rl.loop import train
from k2jax.rl.tasks import TaskMixture
from k2jax.trajectory import Reward, Trajectory
from k2jax.trajectory.store import TrajectoryStore
from tests.rl.sometimes_hostile import is_hostile
from tests.rl.tiny import share_of_low_bytes, tiny


@pytest.mark.slow
def test_samples_without_a_verdict_are_masked_and_the_others_train(tmp_path):
    datasets.add("hostile_tasks", "tests.rl.sometimes_hostile:HostileTasks")
    config = tiny(**{
        "rl.tasks.low.dataset": "hostile_tasks", "rl.rollout.prompts": 6, "rl.rollout.samples": 8,
        "rl.scoring.workers": 2, "rl.scoring.timeout": 0.4, "rl.scoring.retries": 0,
        "rl.eval_prompts": 0, "train.steps": 2,
    })  # fmt: skip
    assert train(config, tmp_path / "run") == 0
    store = TrajectoryStore(tmp_path / "run" / "trajectories")
    for record in read_metrics(tmp_path / "run"):
        trajectories = list(store.read(record["step"]))
        masked = [trajectory for trajectory in trajectories if trajectory.status == "masked"]
        judged = [trajectory for trajectory in trajectories if trajectory.status == "finished"]
        assert record["masked_samples"] == len(masked) >= 2 and len(judged) >= 2
        for trajectory in masked:
            assert is_hostile(trajectory.answer) and trajectory.reward is None
            assert trajectory.error.startswith("VerifierError: no verdict")
        for trajectory in judged:
            assert not is_hostile(trajectory.answer)
            assert trajectory.reward.value == share_of_low_bytes(None, trajectory.answer).value
        rewards = [trajectory.reward.value for trajectory in trajectories if trajectory.status != "masked"]
        assert record["reward"] == pytest.approx(np.mean(rewards))
        assert record["updates"] >= 1 and np.isfinite(record["loss"])


class Verdicts:
    """Rollouts whose verdicts are given: 1, 0, or None for a masked sample."""

    def __init__(self, verdicts):
        self._verdicts = verdicts

    async def run(self, step, groups, token_cap=0, greedy=0):
        for group, verdicts in zip(groups, self._verdicts, strict=True):
            group.trajectories = [
                Trajectory("t", "d", (step, 0, sample), status="masked" if verdict is None else "finished",
                           reward=None if verdict is None else Reward(verdict))
                for sample, verdict in enumerate(verdicts)
            ]  # fmt: skip


def evaluation(verdicts):
    config = tiny(**{"rl.eval_prompts": 3, "rl.eval_samples": 2})
    mixture = TaskMixture(config.rl.tasks, 0)
    tasks = HeldOutTasks(config, mixture, Verdicts(verdicts))
    return tasks.record(asyncio.run(tasks.sample(2)))


def test_masked_samples_of_an_evaluation_count_neither_as_right_nor_as_wrong():
    record = evaluation([[1, 1, 0], [None, 1, None], [0, 1, 1]])
    assert record["eval/greedy"] == 1 / 2
    assert (record["eval/avg@2"], record["eval/pass@2"], record["eval/pass^2"]) == (3 / 4, 1, 1 / 2)


def test_an_evaluation_without_any_verdict_has_no_accuracy():
    record = evaluation([[None, None, None]] * 3)
    assert not any("greedy" in name or "@" in name or "^" in name for name in record)
