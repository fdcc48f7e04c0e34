"""Whole runs of the command: killed and resumed, stopped, refused."""

import contextlib
import dataclasses
import json
import os
from pathlib import Path
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from unittest import mock

import jax
import numpy as np
import pytest

from k2jax.batch import pack_row, stack_rows
from k2jax.checkpoint import committed_steps
from k2jax.config import phase, resolve
from k2jax.data import prepare_data
from k2jax.errors import UserError
from k2jax.report.metrics import read_metrics
from k2jax.report.plots import draw_plots
from k2jax.report.samples import read_samples
from k2jax.reproduce.text_loss import text_loss
from k2jax.train import train
from k2jax.train.run import Run
from k2jax.train.signals import StopAskedError
from k2jax.train.workdir import lock_workdir, locked
from tests.command import run_command
from tests.train.programs import shared_program
from tests.train.tiny import CONFIG_FILE, tiny, tiny_config, write_corpus

ROOT = Path(__file__).parents[2]
# Bytes: how tensors share the files of a checkpoint depends on the moment; the embedding of 300 x 32 lies in one.
LESS_THAN_A_TENSOR = 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_corpus(folder)
    (folder / "config.py").write_text(CONFIG_FILE.format(folder=str(folder)))
    return folder


@pytest.fixture(scope="module")
def finished(folder):
    """The workdir of an uninterrupted run."""
    with mock.patch("k2jax.train.report.draw_plots", draw_plots):
        assert train(tiny(folder), folder / "finished") == 0
    return folder / "finished"


def start(folder, workdir, *more):
    command = [sys.executable, "-m", "k2jax.train", f"--config={folder}/config.py", f"--workdir={workdir}", *more]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, cwd=ROOT, **pipes)


def refused(folder, *more, workdir=None):
    """The one line with which the command ends."""
    arguments = f"--config={folder}/config.py", f"--workdir={workdir or folder / 'refused'}", *more
    done = run_command("k2jax.train", *arguments)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def wait_for_step(workdir, step, process):
    deadline = time.monotonic() + 240
    while not any(record["step"] >= step for record in read_metrics(workdir)):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.02)


def losses(workdir):
    return [(record["step"], record["loss"], record.get("val_loss")) for record in read_metrics(workdir)]


def test_a_run_leaves_everything_a_person_looks_for(finished):
    records = read_metrics(finished)
    assert [record["step"] for record in records] == list(range(1, 13))
    for key in ("loss", "learning_rate", "grad_norm", "update_norm", "tokens_per_second", "mfu",
                "max_logit", "clipped_heads", "max_violation", "seconds", "memory_gb", "expert_tokens",
                "max_logit_heads"):  # fmt: skip
        assert all(record[key] is not None for record in records), key
    assert records[-1]["val_bits_per_byte"] > 0
    for name in ("config.json", "report.md", "plots/loss.png", "plots/max_logit.png", "plots/expert_load.png",
                 "plots/learning_rate.png", "samples/12.md", "tokenizer/tokenizer.json", "checkpoints/12"):  # fmt: skip
        assert (finished / name).exists(), name


def test_the_loss_of_held_out_text_that_studies_measure_is_that_of_the_run(folder, finished):
    assert text_loss(tiny(folder), finished) == pytest.approx(read_metrics(finished)[-1]["val_loss"], rel=1e-5)


def test_every_source_has_a_held_out_loss_of_its_own(folder, finished):
    """The losses of the sources, weighted by their targets, are that of all rows together."""
    config = tiny(folder, **{"eval.by_source": True})
    assert train(config, folder / "by_source") == 0
    whole, apart = (read_metrics(workdir)[-1] for workdir in (finished, folder / "by_source"))
    held_out = prepare_data(config.data, batch_size=4, seed=0, steps=12).held_out
    batches = {name: held_out.batches(4, source=name) for name in held_out.names}
    weights = {name: sum(batch.targets["weights"].sum() for batch in of) for name, of in batches.items()}
    total = sum(weight * apart[f"val_loss/{name}"] for name, weight in weights.items())
    assert total / sum(weights.values()) == pytest.approx(whole["val_loss"], rel=1e-6)
    assert apart["val_loss"] == pytest.approx(whole["val_loss"], rel=1e-6)
    assert apart["val_loss/one"] != apart["val_loss/two"] and "val_loss/one" not in whole


def test_a_run_that_was_terminated_and_then_killed_gives_the_same_losses_bit_for_bit(folder, finished):
    workdir, log = folder / "killed", Run.log

    def terminated(run, step, record):
        log(run, step, record)
        if step == 3:
            signal.raise_signal(signal.SIGTERM)

    with mock.patch.object(Run, "log", terminated):
        assert train(tiny(folder, **{"checkpoint.every": 1000}), workdir) == 143
    assert committed_steps(workdir) == [3] and read_metrics(workdir)[-1]["step"] == 3
    process = start(folder, workdir)
    wait_for_step(workdir, random.randrange(4, 12), process)
    time.sleep(random.random() * 0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert train(tiny(folder), workdir) == 0
    assert losses(workdir) == losses(finished)


def test_a_run_in_phases_that_stops_at_the_seam_goes_on_in_the_right_one_bit_for_bit(folder, monkeypatch):
    """Two phases that differ in their mixture and share a program; the rates are those of one schedule."""
    config = tiny_config(str(folder))
    config.phases = {"both": phase(), "alone": phase(begin=6, mixture=("two=1",))}
    config.update_from_flattened_dict({"checkpoint.every": 1000, "eval.every": 1000, "eval.sample_tokens": 0})
    config, whole, stopped = resolve(config), folder / "phases", folder / "seam"
    assert train(config, whole) == 0
    log = Run.log

    def terminated(run, step, record):
        log(run, step, record)
        if step == 6 and run.start == 0:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Run, "log", terminated)
    assert train(config, stopped) == 143 and committed_steps(stopped) == [6]
    assert train(config, stopped) == 0
    assert losses(stopped) == losses(whole) and committed_steps(whole) == [6, 12]
    records = read_metrics(stopped)
    assert [record["phase"] for record in records] == ["both"] * 6 + ["alone"] * 6
    assert [record["step"] for record in records if "val_loss" in record] == [6, 12]
    report = (stopped / "report.md").read_text()
    assert "| both  | 1 to 6" in report and "| alone | 7 to 12" in report
    with pytest.raises(UserError, match=r"config\.phases\.alone\.begin is 6 there and 7"):
        moved = dataclasses.replace(config.phases["alone"], begin=7)
        train(dataclasses.replace(config, phases=config.phases | {"alone": moved}), stopped)


def copy_tree(source, target):
    shutil.copytree(source, target)
    return target


def unfinished(finished, target):
    """A copy of the finished run that goes on from step 8.

    Tests resume it with the number of steps it was begun with: the schedule makes that number a part of the compiled
    step, and another one costs a compilation. All of this file's runs of ``tiny`` share one.
    """
    shutil.rmtree(copy_tree(finished, target) / "checkpoints" / "12")
    return target


def test_a_workdir_of_another_model_is_refused_and_kept(folder, finished):
    before = (finished / "config.json").read_text()
    message = refused(folder, "--config.model.layers=3", workdir=finished)
    assert "config.model.layers is 2 there and 3 here" in message
    assert (finished / "config.json").read_text() == before


def test_a_changed_corpus_is_refused(folder, finished, tmp_path):
    workdir = copy_tree(finished, tmp_path / "changed")
    extra = folder / "one" / "extra.txt"
    extra.write_text("more text\n" * 20)
    try:
        with pytest.raises(UserError, match="corpus or the tokenizer changed"):
            train(tiny(folder), workdir)
    finally:
        extra.unlink()


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("train.stepz=3", "did you mean 'train.steps'"),
        ("data.sources.one.path=nowhere", "nowhere"),
        ("train.micro_batches=3", "micro-batches"),
        ("stage=rl", "k2jax.train runs pretrain and sft"),
        ("stage=pretain", "did you mean 'pretrain'"),
    ],
)
def test_mistakes_are_one_line_with_exit_code_2(folder, mistake, words):
    assert words in refused(folder, f"--config.{mistake}")


def test_a_non_finite_run_stops_with_code_3_and_names_the_last_good_step(folder, finished, tmp_path, capsys):
    """The step that stopped the run leaves nothing in the counters that are saved."""
    workdir, update = unfinished(finished, tmp_path / "hot"), Run.update

    def poisoned(run, parts):
        if run.step == 10:
            run.state = run.state.replace(params=jax.tree.map(lambda leaf: leaf * 1e30, run.state.params))
        return update(run, parts)

    with mock.patch.object(Run, "update", poisoned):
        assert train(tiny(folder), workdir) == 3
    assert "the last good step is 9" in capsys.readouterr().out
    assert read_metrics(workdir)[-1]["step"] == committed_steps(workdir)[-1] == 9
    meta = json.loads((workdir / "checkpoints" / "9" / "meta" / "metadata").read_text())
    assert abs(meta["running_loss"]) < 10


@pytest.mark.parametrize(("updated", "newest"), [(False, 9), (True, 8)])
def test_a_run_that_is_asked_to_stop_while_it_waits_saves_the_last_whole_step(
    updated, newest, folder, finished, tmp_path, capsys
):
    workdir, update = unfinished(finished, tmp_path / "waits"), Run.update

    def waiting(run, parts):
        if run.step < 10 or updated:
            metrics = update(run, parts)
        if run.step == 10:
            raise StopAskedError
        return metrics

    with mock.patch.object(Run, "update", waiting):
        assert train(tiny(folder), workdir) == 143
    assert f"the run goes on from step {newest}" in " ".join(capsys.readouterr().out.split())
    assert read_metrics(workdir)[-1]["step"] == 9 and committed_steps(workdir)[-1] == newest
    assert train(tiny(folder), workdir) == 0 and losses(workdir) == losses(finished)


def test_a_mistake_that_was_mended_leaves_no_trace(folder):
    assert "nowhere" in refused(folder, "--config.data.sources.one.path=nowhere", workdir=folder / "mended")
    assert train(tiny(folder), folder / "mended") == 0


@contextlib.contextmanager
def full_disk(file_bytes):
    """No file of this process grows beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def check_full_disk(folder, finished, workdir, file_bytes):
    """The files of a checkpoint cannot grow; then there is room again."""
    with full_disk(file_bytes), pytest.raises(UserError, match="make room") as error:
        train(tiny(folder), workdir)
    assert "\n" not in str(error.value)
    committed = committed_steps(workdir)
    assert train(tiny(folder), workdir) == 0
    assert losses(workdir) == losses(finished)
    return str(error.value), committed


def test_a_full_disk_is_one_line_and_loses_nothing(folder, finished):
    line, committed = check_full_disk(folder, finished, folder / "full", LESS_THAN_A_TENSOR)
    assert "a checkpoint could not be written" in line and not committed


@pytest.mark.slow
def test_a_disk_that_fills_up_at_any_moment_costs_nothing(folder, finished):
    for moment in range(10):
        limit = random.randrange(100, LESS_THAN_A_TENSOR)
        check_full_disk(folder, finished, folder / f"full-{moment}", limit)


def test_two_processes_do_not_share_a_workdir(folder, finished):
    with locked(finished), pytest.raises(UserError, match="in use by another process"):
        train(tiny(folder), finished)


def test_a_report_that_was_lost_at_the_end_is_written_on_the_next_start(folder, finished, tmp_path):
    workdir = copy_tree(finished, tmp_path / "unreported")
    (workdir / "report.md").unlink()
    assert train(tiny(folder), workdir) == 0
    assert "Finished: 12 of 12 steps" in (workdir / "report.md").read_text()


def test_a_trace_covers_what_is_left_of_its_steps(folder, finished, tmp_path):
    """Resuming at step 8 inside the window, and ending before its end."""
    workdir = unfinished(finished, tmp_path / "traced")
    assert train(tiny(folder, **{"train.profile_steps": (2, 99)}), workdir) == 0
    assert list((workdir / "profile").rglob("*.xplane.pb"))


RATE_COMMAND = "python -m k2jax.train --config=c.py --config.optimizer.learning_rate=1e-3"


def test_a_changed_setting_is_said_and_stays_in_the_report(folder, finished, tmp_path, capsys):
    workdir = unfinished(finished, tmp_path / "changed_rate")
    changed = {"train.spike_factor": 1.3, "eval.every": 4}
    assert train(tiny(folder, **changed), workdir, RATE_COMMAND) == 0
    told = capsys.readouterr().out
    assert "config.train.spike_factor was 1.2 up to step 8 and is 1.3 now" in told
    assert "config.eval.every was 6 up to step 8 and is 4 now" in told
    report = (workdir / "report.md").read_text()
    changes = [[cell.strip() for cell in line.split("|")[1:3]] for line in report.splitlines() if "|" in line]
    assert all(["8", f"`{key}`"] in changes for key in changed)
    assert "--config.optimizer.learning_rate=1e-3" in report.split("## Continue")[1]


def test_samples_begin_like_held_out_documents(finished):
    """Without configured prompts: those of the text that the run is about."""
    prompts = [sample.prompt for sample in read_samples(finished)[12]]
    assert len(prompts) == 3 and all(prompt.startswith(("one ", "two ")) for prompt in prompts)


def test_a_corpus_may_move(folder, finished, tmp_path):
    workdir = unfinished(finished, tmp_path / "moved")
    shutil.copytree(folder / "one", tmp_path / "elsewhere")
    config = tiny(folder, **{"data.sources.one.path": str(tmp_path / "elsewhere")})
    assert train(config, workdir) == 0
    assert losses(workdir) == losses(finished)


def test_embeddings_of_another_tokenizer_are_refused(folder, finished, tmp_path):
    other = {"data.tokenizer.kind": "bpe", "data.tokenizer.vocab": 280}
    with pytest.raises(UserError, match=r"another tokenizer; set config.data.tokenizer.kind to 'file' .*finished/tok"):
        train(tiny(folder, init_from=str(finished), **other), tmp_path / "wrong")


def test_parameters_of_another_run_start_an_empty_workdir(folder, finished):
    config = tiny(folder, init_from=str(finished))
    assert train(config, folder / "warm") == 0
    assert read_metrics(folder / "warm")[0]["loss"] < read_metrics(finished)[3]["loss"]


def test_a_loop_of_its_own_keeps_what_it_needs_beside_the_state(folder, tmp_path):
    """A Run knows neither data nor algorithm: the loop's batches are its own, and so is what it saves."""
    config = tiny(folder, **{"checkpoint.every": 6})
    row = pack_row([np.arange(1, 30)], config.data.sequence_length)
    batch = stack_rows([row] * config.train.batch_size)
    losses_of = {}
    for stop in (6, None, None):
        with (
            lock_workdir(tmp_path / "own", config) as path,
            Run(shared_program(config), path, {"game": "chess"}) as run,
        ):
            phase = run.extra["phase"] if run.extra else 0
            for step in run.steps():
                losses_of.setdefault(step, float(run.update([batch]).loss))
                phase += step
                run.log(step, {"reward": 0.5})
                run.save_when_due(step, {"phase": phase, "unfinished": [np.arange(step)]})
                if step == stop:
                    break
    assert run.exit_code == 0 and run.start == 12
    assert run.extra["phase"] == sum(range(13)) and run.extra["unfinished"][0].tolist() == list(range(12))
    assert losses_of[12] < losses_of[1]
    records = read_metrics(tmp_path / "own")
    assert [(record["step"], record["reward"]) for record in records] == [(step, 0.5) for step in range(1, 13)]
    assert records[-1]["tokens"] == 12 * config.train.batch_size * 29  # padding is not counted
    with lock_workdir(tmp_path / "own", config) as path, pytest.raises(UserError, match="the game changed since"):
        Run(shared_program(config), path, {"game": "go"})
