"""Whole runs in which the policy is its own judge: their records, resumed, and mistakes in their config."""

import pytest

from k2jax.agents.viewer.viewer import write_page
from k2jax.config import resolve
from k2jax.errors import UserError
from k2jax.report.metrics import read_metrics
from k2jax.rl.loop import train
from k2jax.rl.methods.critic import Critic
from k2jax.trajectory.annotations import reward_parts
from k2jax.trajectory.consistency import verify
from k2jax.trajectory.store import TrajectoryStore
from tests.rl.critic import lenient
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
def test_a_reward_of_verifier_judge_and_penalty_stands_in_metrics_store_and_page(tmp_path, monkeypatch):
    """By two iterations of a decay over all of the run half of the judge's weight is left."""
    lenient.install(monkeypatch.setattr)
    both = {"verifier_weight": 1.0, "judge_weight": 0.5, "judge_weight_final": 0.0, "overlong_penalty": 0.25}
    overrides = {f"rl.tasks.open.{key}": value for key, value in (both | {"reward_decay": 1.0}).items()}
    workdir = tmp_path / "run"
    assert train(changed(**overrides, **{"rl.critic.share": 0.0}), workdir) == 0
    records = read_metrics(workdir)[1:]
    assert [record["reward_weight/open/judge"] for record in records] == [0.5, 0.25]
    for record in records:
        parts = {name: record[f"reward_part/open/{name}"] for name in ("verifier", "judge", "overlong")}
        total = parts["verifier"] + record["reward_weight/open/judge"] * parts["judge"] + 0.25 * parts["overlong"]
        assert record["reward/open"] == pytest.approx(total, abs=1e-12) and 0 < parts["verifier"] < 1
        assert parts["judge"] == pytest.approx(0.5, abs=0.25)
    store = TrajectoryStore(workdir / "trajectories")
    stored = [each for each in store.read(2) if reward_parts(each)]
    assert 0 < len(stored) < len(list(store.read(2)))  # the other class has one term alone
    assert all([part.name for part in reward_parts(each)] == [*parts] for each in stored)
    assert all(reward_parts(each)[0].value == each.reward.value for each in stored)
    write_page(tmp_path / "page.html", stored, lambda ids: "", title="two")
    page = (tmp_path / "page.html").read_text()
    assert "0.25 x" in page and "overlong" in page


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
