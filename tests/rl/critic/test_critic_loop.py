"""Whole runs in which the policy is its own judge: their records, resumed, and mistakes in their config."""

import shutil

import pytest

from k2jax.config import resolve
from k2jax.errors import UserError
from k2jax.report.metrics import read_metrics
from k2jax.rl.loop import train
from k2jax.rl.methods.critic import Critic
from k2jax.trajectory.consistency import verify
from k2jax.trajectory.store import TrajectoryStore
from tests.rl.critic import lenient
from tests.rl.runs import assert_equal_runs
from tests.rl.tiny import tiny


def changed(**overrides):
    config = lenient.critic_config()
    config.update_from_flattened_dict(overrides)
    return resolve(config)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The workdir of an uninterrupted run."""
    workdir = tmp_path_factory.mktemp("critic") / "finished"
    with pytest.MonkeyPatch.context() as patch:
        lenient.install(patch.setattr)
        assert train(changed(), workdir) == 0
    return workdir


@pytest.mark.slow
def test_a_run_trains_answers_by_comparison_and_verdicts_by_what_is_known(finished):
    records = read_metrics(finished)
    for record in records[1:]:
        assert record["critic/pairs"] > 0 and record["refinement/pairs"] > 0 and record["tokens/mismatch"] < 1e-5
        assert record["critic/unparsable"] < 1 and 0 < record["refinement/accuracy"] < 1
    assert all(0 <= record["eval/judge/accuracy"] <= 1 for record in (records[0], records[2]))
    assert (finished / "plots" / "verdicts.png").exists()
    values, verdicts = set(), 0
    for step in TrajectoryStore(finished / "trajectories").steps():
        for trajectory in TrajectoryStore(finished / "trajectories").read(step):
            assert not verify(trajectory, 258)
            if "won" in trajectory.reward.info:
                values.add(trajectory.reward.value)
                assert trajectory.reward.info["of"] == 3
            verdicts += trajectory.domain == "critic"
    assert {0.0, 0.5} < values and verdicts == 2 * 4 * 4


@pytest.mark.slow
def test_an_iteration_that_was_interrupted_is_repeated_to_the_bit_with_its_verdicts(finished, tmp_path, monkeypatch):
    """The last checkpoint is lost after the verdicts of its iteration were written."""
    lenient.install(monkeypatch.setattr)
    workdir = tmp_path / "resumed"
    shutil.copytree(finished, workdir)
    shutil.rmtree(workdir / "checkpoints" / "2")
    before = (workdir / "verdicts" / "step-00000002.jsonl").read_bytes()
    assert train(changed(), workdir) == 0
    assert_equal_runs(workdir, finished)
    assert (workdir / "verdicts" / "step-00000002.jsonl").read_bytes() == before


ENDPOINT = {"rl.critic.judge": "endpoint", "rl.critic.share": 0.0, "rl.critic.url": "http://x", "rl.critic.model": "m"}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (ENDPOINT | {"rl.critic.share": 0.5}, "share trains the policy as its own judge"),
        (ENDPOINT | {"rl.critic.url": "x:80"}, "endpoint needs rl.critic.url"),
        ({"rl.critic.url": "http://x"}, "are of an endpoint"),
        (
            {"rl.tasks.low.verifier_weight": 0.0, "rl.tasks.low.judge_weight": 1.0},
            "share needs a class in config.rl.tasks with a verifier_weight",
        ),
        (ENDPOINT | {"rl.toggle.period": 2}, "toggle counts right responses, which no critic knows"),
        ({"rl.critic.max_tokens": 80}, "leaves no room for a question"),
        ({"rl.critic.rubrics": ("r.yaml",)}, "not read with rl.critic.format compact"),
        ({"rl.critic.rubrics": ("r.yaml",), "rl.critic.format": "chat"}, "cannot read the rubrics r.yaml"),
        (ENDPOINT | {"rl.critic.api_key_variable": "NO_SUCH_KEY"}, r"\$NO_SUCH_KEY is not set"),
    ],
)
def test_mistakes_are_one_line(tmp_path, overrides, words):
    lenient.install(lambda *change: None)
    with pytest.raises(UserError, match=words) as error:
        train(changed(**overrides), tmp_path / "refused")
    assert "\n" not in str(error.value) and not (tmp_path / "refused" / "checkpoints").exists()


def test_the_name_of_the_judge_s_class_is_taken_and_a_run_without_a_critic_has_none(tmp_path):
    config = lenient.critic_config()
    config.rl.tasks.critic = config.rl.tasks.low.copy_and_resolve_references()
    with pytest.raises(UserError, match="'critic' is the class of the judge's own tasks"):
        train(resolve(config), tmp_path / "refused")
    assert not Critic.used(tiny())
