"""Samples that the infrastructure failed are counted aloud, and a run of which nothing else is left stops."""

import pytest

from k2jax.agents.environment import Environment
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.registry import environments
from k2jax.errors import UserError
from k2jax.report.metrics import read_metrics
from k2jax.rl.failures import PATIENCE, FailureGuard, masked_words
from k2jax.rl.groups import PromptGroup
from k2jax.rl.loop import train
from k2jax.trajectory import Reward, Trajectory
from tests.rl.tiny import tiny


class Broken(Environment):
    """An environment that never begins."""

    async def reset(self, task, seed):
        raise EnvironmentFailedError("the machine is\non fire")

    async def close(self):
        pass


def group(*errors):
    """A group whose samples failed for these reasons; None stands for a sample that counts."""
    trajectories = [
        Trajectory("t", "d", (1, 0, i), status="finished", reward=Reward(1.0))
        if error is None
        else Trajectory("t", "d", (1, 0, i), status="masked", error=error)
        for i, error in enumerate(errors)
    ]
    return PromptGroup(0, (1, 0), None, trajectories)


def test_an_iteration_says_how_many_samples_are_masked_and_mostly_why():
    notes = []
    watch = FailureGuard(notes.append)
    watch.check(1, [group(None, None), group(*[None] * 18, "once")])
    watch.check(2, [group(None, "rarely"), group("often\nand again", "often and again")])
    assert notes == ["step 2: 3 of 4 samples were masked, 2 of them by often and again"]
    assert masked_words(group("", None).trajectories).endswith("1 of them by no reason")
    assert masked_words(group(None).trajectories) == ""


def test_only_iterations_in_a_row_without_any_sample_that_counts_end_a_run():
    watch = FailureGuard(lambda line: None)
    for step in range(1, PATIENCE):
        watch.check(step, [group("e", "e")])
    watch.check(PATIENCE, [group("e", None)])
    for step in range(1, PATIENCE):
        watch.check(PATIENCE + step, [group("e", "e")])
        watch.check(PATIENCE + step, [])  # an iteration that completes no group says nothing
    with pytest.raises(UserError, match=rf"no sample of the last {PATIENCE} iterations counts; 1 of 1 .* by e;"):
        watch.check(9, [group("e")])


def test_a_run_whose_environments_never_begin_stops_with_their_reason_and_keeps_what_it_saved(tmp_path, capsys):
    environments.add("broken", "tests.rl.test_masked:Broken")
    config = tiny(**{
        "rl.tasks.low.environment": "broken", "rl.eval_prompts": 0, "train.steps": 8, "checkpoint.every": 1,
    })  # fmt: skip
    with pytest.raises(UserError, match=r"16 of 16 samples .*, 16 of them by EnvironmentFailedError: .* fire;"):
        train(config, tmp_path / "run")
    assert "step 1: 16 of 16 samples were masked" in capsys.readouterr().out
    assert [record["step"] for record in read_metrics(tmp_path / "run")] == list(range(1, PATIENCE))
