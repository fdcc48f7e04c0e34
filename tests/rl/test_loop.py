"""Whole runs of the command: what they leave, killed and resumed, refused."""

import json
import shutil
from unittest import mock

import numpy as np
import pytest

from k2jax.agents.registry import verifiers
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.checkpoint import committed_steps
from k2jax.convert.loading import from_pretrained
from k2jax.errors import UserError
from k2jax.inference.decode import STEPS
from k2jax.report.metrics import read_metrics
from k2jax.report.plots import draw_plots
from k2jax.rl.evaluation import held_out_words
from k2jax.rl.loop import train
from k2jax.rl.sync import offload
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine, store_folder
from k2jax.rl.sync.stored_weights import load_current
from k2jax.rl.sync.weight_sync import StaleWeightsError, SyncStats, WeightSync
from k2jax.trajectory.consistency import verify
from k2jax.trajectory.store import TrajectoryStore
from tests.refusal import refused
from tests.rl.runs import assert_equal_runs
from tests.rl.tiny import tiny
from tests.train.together import free_port


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rl")


@pytest.fixture(scope="module")
def finished(folder):
    """The workdir of an uninterrupted run."""
    with mock.patch("k2jax.train.report.draw_plots", draw_plots):
        assert train(tiny(), folder / "finished") == 0
    return folder / "finished"


def test_a_run_leaves_everything_a_person_looks_for(finished):
    records = read_metrics(finished)
    assert [record["step"] for record in records] == [0, 1, 2, 3, 4]
    for key in ("loss", "reward", "accuracy", "length", "truncated", "tokens/mismatch", "tokens/mismatch_p99",
                "tokens/mismatch_max", "tokens/entropy", "tokens/kl", "policy/clipped", "grad_norm", "update_norm",
                "max_logit", "sync_seconds", "rollout_tokens_per_second", "tokens_per_second", "decode_steps",
                "slots_used", "prefill_tokens"):  # fmt: skip
        assert all(record[key] is not None for record in records[1:]), key
    assert all(0 < record["slots_used"] <= 1 and record["stale_tokens"] == 0 for record in records[1:])
    for record in (records[0], records[2], records[4]):
        assert record["eval/greedy/low"] <= record["eval/greedy"] <= record["eval/greedy/high"]
        assert {"eval/avg@2", "eval/pass@2", "eval/pass^2"} <= record.keys()
    for name in ("config.json", "report.md", "plots/accuracy.png", "plots/responses.png", "plots/drift.png",
                 "tokenizer/tokenizer.json", "checkpoints/4", "trajectories"):  # fmt: skip
        assert (finished / name).exists(), name
    report = (finished / "report.md").read_text()
    assert "plots/accuracy.png" in report and "Shares of 4 held-out tasks" in report and "| avg@2 " in report
    verdicts = {path.stem for path in (finished / "verdicts").iterdir()}
    assert verdicts == {"step-00000003", "step-00000004", "eval-00000004"}  # what the checkpoint of step 2 leads to


def test_an_evaluation_is_told_in_a_line():
    record = {"eval/greedy": 0.5, "eval/greedy/low": 0.1, "eval/greedy/add3": 0.2, "eval/avg@8": 0.25, "eval/pass@8": 1}
    assert held_out_words(1400, record) == "step 1,400: held-out accuracy greedy 0.500, avg@8 0.250"
    assert "no answer got a verdict" in held_out_words(0, {"eval/length": 3.0})


def test_engine_and_trainer_agree_on_what_was_sampled(finished):
    records = read_metrics(finished)[1:]
    mean, p99, largest = (
        np.array([record[f"tokens/{name}"] for record in records])
        for name in ("mismatch", "mismatch_p99", "mismatch_max")
    )
    assert mean.mean() < 1e-5
    assert (p99 > 0).all() and (p99 <= largest).all() and (mean <= largest).all() and (largest < 1e-2).all()


def test_trajectories_are_consistent_and_record_the_temperature_and_version_of_every_token(finished):
    store = TrajectoryStore(finished / "trajectories")
    assert store.steps() == [1, 2, 3, 4]
    for step, temperature in zip((1, 2, 3, 4), (1.0, 0.85, 0.7, 0.7), strict=True):
        trajectories = list(store.read(step))
        assert len(trajectories) == 16
        for trajectory in trajectories:
            assert not verify(trajectory, 258)
            node = trajectory.nodes[-1]
            assert node.temperature == np.float32(temperature) and set(node.versions) == {step - 1}


@pytest.mark.slow
def test_partial_rollouts_go_on_after_a_resume_as_if_there_had_been_none(folder, monkeypatch):
    """With a cap a response takes several iterations; the checkpoint holds what is unfinished."""
    capped = {"rl.rollout.token_cap": 25, "train.steps": 6, "rl.eval_prompts": 0, "checkpoint.every": 2}
    constant = {
        "optimizer.schedule.kind": "constant",
        "optimizer.schedule.warmup_steps": 1,
        "rl.tasks.low.temperature_decay": 0.0,
    }
    assert train(tiny(**capped, **constant), folder / "capped") == 0
    assert train(tiny(**capped | {"train.steps": 4}, **constant), folder / "half") == 0
    assert train(tiny(**capped, **constant), folder / "half") == 0
    assert_equal_runs(folder / "half", folder / "capped")
    # Killed before its last checkpoint is there, it asks for no verdict again, of groups that began before it neither.
    store = TrajectoryStore(folder / "half" / "trajectories")
    waiting = [trajectory for step in (5, 6) for trajectory in store.read(step) if trajectory.key[0] <= 4]
    assert waiting
    for step in (5, 6):
        store.path(step).unlink()
    shutil.rmtree(folder / "half" / "checkpoints" / "6")
    monkeypatch.setattr(VerifierPool, "score", None)
    assert train(tiny(**capped, **constant), folder / "half") == 0
    assert_equal_runs(folder / "half", folder / "capped")
    store, versions, responses = TrajectoryStore(folder / "capped" / "trajectories"), set(), 0
    for step in store.steps():
        for trajectory in store.read(step):
            assert not verify(trajectory, 258)
            versions.add(len(set(trajectory.nodes[-1].versions)))
            responses += 1
    assert max(versions) == 3 and responses % 4 == 0  # 60 tokens in iterations of 25, in whole groups
    # Two waves of eight slots, of 24 steps behind the first token, and what a program does behind the end of one of its
    # responses; the longest response alone would take 59 steps.
    records = read_metrics(folder / "capped")
    assert max(record["decode_steps"] for record in records) <= 2 * 24 + STEPS - 1
    assert max(record["stale_tokens"] for record in records) > 0


def interrupted(finished, workdir):
    """A copy of the finished run as a kill before its last checkpoint leaves it."""
    shutil.copytree(finished, workdir)
    shutil.rmtree(workdir / "checkpoints" / "4")
    return workdir


def test_resumed_with_states_at_rest_and_published_weights_it_ends_bit_identical(folder, finished, monkeypatch):
    """What engines in other processes read at the end of the run are the weights of its last checkpoint."""
    kept = {}

    def remove(self, remove=CheckpointEngine.remove):
        version, leaves = load_current(self.folder)
        kept[version] = {name: np.array(array) for name, array in leaves}
        remove(self)

    monkeypatch.setattr(CheckpointEngine, "remove", remove)
    monkeypatch.setattr(offload, "has_host_memory", lambda platform: True)  # also on a CPU
    workdir = interrupted(finished, folder / "resumed")
    keys = {"offload_state": True, "publish": True, "publish_listen": f"127.0.0.1:{free_port()}"}
    assert train(tiny(**{f"rl.rollout.{name}": value for name, value in keys.items()}), workdir) == 0
    assert (workdir / "publish.key").stat().st_mode & 0o777 == 0o600
    assert_equal_runs(workdir, finished)
    _, params = from_pretrained(str(workdir))
    assert list(kept) == [4] and not store_folder(workdir).exists()
    np.testing.assert_array_equal(kept[4]["embed"], params["embed"])


def test_a_skipped_push_of_the_weights_is_caught_at_once(folder, finished, monkeypatch):
    push, old = WeightSync.push, SyncStats(1.0, 1, "", 0)
    monkeypatch.setattr(WeightSync, "push", lambda self, params, step: push(self, params, step) if step < 3 else old)
    with pytest.raises(StaleWeightsError, match=r"version 2 .* trainer is at version 3"):
        train(tiny(), interrupted(finished, folder / "stale"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"rl.rollout.max_length": 128}, "longer than a row of config.data.sequence_length 96"),
        ({"rl.tasks.low.max_tokens": 80}, "leaves no room for a prompt"),
        ({"rl.rollout.publish_listen": "h:1"}, "publish_listen gives what config.rl.rollout.publish keeps"),
        ({"router.balance_loss": 0.1}, "balance_loss counts rows"),
        ({"rl.updates": 9}, "rl.updates 9 is more than"),
        ({"rl.tasks.low.dataset": "low_bites"}, "there is no dataset 'low_bites'; did you mean 'low_bytes'"),
    ],
)
def test_mistakes_are_one_line(folder, overrides, words):
    with pytest.raises(UserError, match=words):
        train(tiny(**overrides), folder / "refused")
    assert not (folder / "refused" / "checkpoints").exists() or not committed_steps(folder / "refused")


def test_a_package_that_a_verifier_needs_is_missed_before_the_model_is_made(folder, monkeypatch):
    monkeypatch.setitem(verifiers.added, "incomplete", "tests.agents.hostile:incomplete")
    monkeypatch.setattr("k2jax.rl.setup.Program", None)
    with refused("^riddles needs the package no_such_package, which is not installed: pip install riddles$"):
        train(tiny(**{"rl.tasks.low.verifier": "incomplete"}), folder / "incomplete")


@pytest.mark.parametrize("key", ["rl.rollout.samples", "rl.tasks.low.max_tokens", "rl.updates", "rl.toggle.samples"])
def test_what_decides_the_rollouts_cannot_change_within_a_workdir(finished, key):
    with pytest.raises(UserError, match=f"holds another run: config.{key} is"):
        train(tiny(**{key: 3}), finished)
    assert json.loads((finished / "config.json").read_text())["rl"]["rollout"]["samples"] == 4
