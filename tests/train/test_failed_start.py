"""A start that did no step binds its workdir to nothing, and a later one reads nothing of what it wrote."""

import contextlib
from types import SimpleNamespace

import pytest

from k2jax.config import defaults, resolve
from k2jax.train import command
from k2jax.train.failed_start import FOLDER
from k2jax.train.workdir import lock_workdir, write_config
from tests.refusal import refused


def config_of(seed):
    config = defaults("rl", model="micro")
    config.train.seed = seed
    return resolve(config)


FAILED = {
    "at its first evaluation": '{"step": 0, "eval/greedy": 0.5}\n',
    "before its logs": None,
    "with empty logs": "",
}
BOUND = {"a line of a step": '{"step": 0}\n{"step": 10}\n', "a line that is cut": '{"step": 10'}


@pytest.mark.parametrize("name", [*FAILED, *BOUND, "a checkpoint"])
def test_only_a_step_that_was_done_binds_a_workdir(tmp_path, capsys, name):
    metrics = (FAILED | BOUND).get(name)
    write_config(tmp_path, config_of(0))
    for folder in ("tokenizer", "verdicts", "trajectories", "groups"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("old")
    (tmp_path / "notes.txt").write_text("the user's own")
    if metrics is not None:
        (tmp_path / "metrics.jsonl").write_text(metrics)
    if name == "a checkpoint":
        (tmp_path / "checkpoints" / "5").mkdir(parents=True)
    if name not in FAILED:
        with (
            refused("holds another run: config.train.seed is 0 there and 1 here"),
            lock_workdir(tmp_path, config_of(1)),
        ):
            pass
        return
    with lock_workdir(tmp_path, config_of(0)):  # a start of the same run
        assert not capsys.readouterr().out
    with lock_workdir(tmp_path, config_of(1)) as path:
        assert sorted(entry.name for entry in path.iterdir()) == [".lock", FOLDER, "notes.txt"]
        assert "did no step and binds nothing" in capsys.readouterr().out
        assert (path / FOLDER / "tokenizer" / "file").read_text() == "old"
    (tmp_path / "trajectories").mkdir()  # without config.json they may be another program's
    with lock_workdir(tmp_path, config_of(2)) as path:
        assert (path / "trajectories").exists() and not capsys.readouterr().out


@pytest.mark.parametrize("message", ["RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.\nmore", "a bug"])
def test_a_step_that_runs_out_of_memory_is_one_line_and_a_bug_is_not(monkeypatch, message):
    """JAX raises a kind of RuntimeError."""

    def train(*arguments):
        raise RuntimeError(message)

    monkeypatch.setattr(command.cli, "run", lambda main, define, doc: main(SimpleNamespace(workdir="run")))
    monkeypatch.setattr(command.cli, "require", lambda *arguments: None)
    monkeypatch.setattr(command.cli, "config_of", lambda values: None)
    monkeypatch.setattr(command.runtime, "prepare", lambda: None)
    monkeypatch.setattr(command.runtime, "pause_collection", lambda: None)
    monkeypatch.setattr(command.processes, "start", lambda: None)
    monkeypatch.setattr(command.importlib, "import_module", lambda name: SimpleNamespace(train=train))
    if message == "a bug":
        with pytest.raises(RuntimeError, match="a bug"):
            command.run_loop("k2jax.train", "")
    else:
        with refused("out of memory .*Out of memory allocating 8 bytes.*config.train.micro_batches.*remat"):
            command.run_loop("k2jax.train", "")


def test_a_folder_without_a_checkpoint_is_named_with_its_key_before_anything_is_opened(tmp_path):
    """It was the tokenizer that was missing."""
    empty, unfinished, whole = (tmp_path / name for name in ("empty", "unfinished", "whole"))
    (unfinished / "checkpoints").mkdir(parents=True)
    (whole / "checkpoints" / "5").mkdir(parents=True)
    empty.mkdir()
    for folder, words in ((empty, "holds no checkpoint"), (unfinished, "a workdir without a checkpoint"), (whole, "")):
        config = defaults("rl", model="micro")
        config.init_from = str(folder)
        outcome = refused(f"config.init_from {folder} .*{words}") if words else contextlib.nullcontext()
        with outcome, lock_workdir(tmp_path / "run", resolve(config)):
            pass
