"""Whole runs with the sampler that does not wait: what they train on, measure, keep and refuse."""

from collections import Counter
import json

import numpy as np
import pytest

from k2jax.agents.registry import environments
from k2jax.errors import UserError
from k2jax.report.metrics import read_metrics
from k2jax.rl.loop import train
from k2jax.rl.policy import Policy
from k2jax.rl.setup import check_config
from k2jax.rl.workers.group_log import FOLDER
from k2jax.rl.workers.tracing import EPISODES, PHASES
from k2jax.rl.workers.worker_episodes import WorkerEpisodes
from k2jax.trajectory import verify
from k2jax.trajectory.steps import ROLE, SPAWNED
from k2jax.trajectory.store import TrajectoryStore
from tests.rl.role_folders import write_role
from tests.rl.test_roles import config_with
from tests.rl.tiny import tiny

OPTIONS = {
    "rl.rollout.sampler": "workers",
    "rl.rollout.prompts": 2,
    "rl.rollout.samples": 2,
    "rl.rollout.trace": 1,
    "rl.max_staleness": 1,
    "rl.tasks.low.options": ("letters=2", "turns=2"),
    "rl.tasks.low.max_tokens": 8,
    "rl.updates": 1,
    "rl.eval_prompts": 1,
    "rl.eval_samples": 1,
    "eval.every": 1,
    "checkpoint.every": 1,
    "train.batch_size": 2,
    "train.steps": 2,
}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A finished run of two iterations, with an evaluation between them."""
    folder = tmp_path_factory.mktemp("workers") / "run"
    assert train(tiny(**OPTIONS), folder) == 0
    return folder


def test_every_prompt_is_trained_on_once_with_the_weights_that_chose_each_token(workdir):
    store = TrajectoryStore(workdir / "trajectories")
    trained = {step: list(store.read(step)) for step in store.steps()}
    keys = [trajectory.key for of_step in trained.values() for trajectory in of_step]
    assert sorted(keys) == [(step, place, sample) for step in (1, 2) for place in (0, 1) for sample in (0, 1)]
    for step, trajectories in trained.items():
        for trajectory in trajectories:
            assert not verify(trajectory, 258) and trajectory.reward is not None
            versions = np.concatenate([node.versions[node.mask] for node in trajectory.nodes])
            assert len(versions) and versions.max() < step and (np.diff(versions) >= 0).all()


def test_its_metrics_say_what_it_waited_for_and_how_far_it_is_behind(workdir):
    records = [record for record in read_metrics(workdir) if "reward" in record]
    assert [record["step"] for record in records] == [1, 2]
    assert records[0]["engine_busy"] > 0 and records[1]["pause_seconds"] > 0
    for record in records:
        assert 0 <= record["engine_busy"] <= 1 and 0 <= record["stale_tokens"] <= 1
        assert record["wait/engine"] > 0 and record["window/left_behind"] >= 0 and record["window/stale"] == 0
    assert [record["step"] for record in read_metrics(workdir) if "eval/greedy" in record] == [0, 1, 2]


def test_the_trace_of_an_iteration_has_its_phases_and_its_episodes(workdir):
    events = json.loads((workdir / "trace-1.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    phases = [event["name"] for event in spans if event["pid"] == PHASES]
    assert phases[:4] == ["generate", "hold", "train", "push"]
    episodes = [event["args"] for event in spans if event["pid"] == EPISODES]
    trained = {tuple(each["key"]) for each in episodes if each["purpose"] == "train" and each["status"] != "under way"}
    assert trained and all(each["engine"] > 0 for each in episodes if each["status"] != "under way")
    assert all(record["lag_p99"] >= 0 for record in read_metrics(workdir) if "reward" in record)


def test_a_checkpoint_has_the_window_and_groups_that_it_has_counted_are_deleted(workdir):
    groups = TrajectoryStore(workdir / FOLDER)
    keys = {trajectory.key[:2] for step in groups.steps() for trajectory in groups.read(step)}
    assert keys <= {(1, 0), (1, 1), (2, 0), (2, 1)}
    assert (workdir / FOLDER).is_dir() and not (workdir / "verdicts").exists()


def test_complete_groups_are_used_where_a_run_died_before_its_first_checkpoint(tmp_path, monkeypatch):
    class DiedError(Exception):
        pass

    def dies(self, params, step):
        if step:
            raise DiedError
        push(self, params, step)

    begun, episode, push = set(), WorkerEpisodes.episode, Policy.push

    def noted(self, step, group, sample, **options):
        begun.add((group.purpose, *group.key))
        return episode(self, step, group, sample, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Policy, "push", dies)  # behind the first update
        with pytest.raises(DiedError):
            train(tiny(**OPTIONS), tmp_path / "run")
    store = TrajectoryStore(tmp_path / "run" / FOLDER)
    samples = Counter(("train", *each.key[:2]) for step in store.steps() for each in store.read(step))
    logged = {place for place, count in samples.items() if count == 2}
    assert {("train", 1, 0), ("train", 1, 1)} <= logged
    monkeypatch.setattr(WorkerEpisodes, "episode", noted)
    assert train(tiny(**OPTIONS), tmp_path / "run") == 0
    assert not begun & logged and ("train", 2, 1) in begun | logged


def test_what_the_window_depends_on_cannot_change_between_starts(workdir):
    for name, value in (("sampler", "lockstep"), ("prompts", 3)):
        with pytest.raises(UserError, match=rf"holds another run: config.rl.rollout.{name} is"):
            other = {"rl.rollout.trace": 0, "rl.max_staleness": None, "train.steps": 3, f"rl.rollout.{name}": value}
            train(tiny(**OPTIONS | other), workdir)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rl.rollout.token_cap": 4}, "rl.rollout.token_cap cuts responses in lockstep"),
        ({"rl.rollout.ray": "auto"}, "rl.rollout.workers is 0; set their number"),
        ({"rl.rollout.sampler": "lockstep", "rl.rollout.workers": 2}, "rl.rollout.workers is of the sampler workers"),
        ({"rl.rollout.sampler": "lockstep"}, "rl.rollout.trace is of the sampler workers"),
        ({"rl.max_staleness": 0}, "set look_ahead to 1, or max_staleness to 1"),
        (
            {"rl.rollout.sampler": "lockstep", "rl.rollout.trace": 0},
            "rl.max_staleness is of the sampler workers",
        ),
    ],
)
def test_what_the_sampler_cannot_run_is_refused_before_anything_is_opened(changes, words):
    with pytest.raises(UserError, match=words):
        check_config(tiny(**OPTIONS | changes))


@pytest.mark.slow
def test_worker_processes_run_the_episodes_of_training_and_of_evaluations(tmp_path):
    assert train(tiny(**OPTIONS | {"rl.rollout.workers": 2, "train.steps": 3}), tmp_path / "run") == 0
    job = json.loads((tmp_path / "run/workers/job.json").read_text())
    assert ["dataset", "low_bytes", "tests.rl.tiny:LowBytes"] not in job["options"]["added"]
    assert ["environment", "echo", "tests.rl.tiny:Echo"] in job["options"]["added"]
    store = TrajectoryStore(tmp_path / "run/trajectories")
    assert {trajectory.key[0] for step in store.steps() for trajectory in store.read(step)} == {1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_role_answers_in_sub_episodes_and_as_a_user_and_its_tokens_are_not_trained_on(workers, tmp_path):
    environments.add("consulting", "tests.rl.test_roles:Consulting")
    changes = {"rl.tasks.low.options": ("letters=2",), "rl.tasks.low.environment": "consulting"}
    helper = write_role(tmp_path / "helper", 2)
    assert train(config_with(helper, **OPTIONS | changes | {"rl.rollout.workers": workers}), tmp_path / "run") == 0
    store = TrajectoryStore(tmp_path / "run/trajectories")
    trained = [trajectory for step in store.steps() for trajectory in store.read(step)]
    assert len(trained) == 8 and not any(ROLE in trajectory.metadata for trajectory in trained)
    spawned = [link for trajectory in trained for link in trajectory.metadata.get(SPAWNED, {}).values()]
    assert spawned and {link[ROLE] for link in spawned} == {"helper"}
