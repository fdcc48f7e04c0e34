"""Whole runs of supervised fine-tuning: weights on answers only, killed and resumed, ended by patience."""

import json
import random
import shutil
import signal
import time
from unittest import mock

import jax
import numpy as np
import pytest

from k2jax.checkpoint import committed_steps
from k2jax.checkpoint.meta import digest
from k2jax.config import resolve, source
from k2jax.convert.loading import load_pretrained
from k2jax.errors import UserError
from k2jax.model import K2
from k2jax.report.metrics import read_metrics
from k2jax.report.samples import read_samples
from k2jax.text import byte_tokenizer
from k2jax.train import train
from k2jax.train.corpus import shared_data
from k2jax.train.run import Run
from tests.train.test_run import losses, start, wait_for_step
from tests.train.tiny import tiny_config
from tests.train.together import end, trainers

BYTES = byte_tokenizer()
CONFIG_FILE = """
from tests.train.test_sft import sft_config

def get_config():
    return sft_config({folder!r})
"""


def sft_config(folder):
    """The editable config of a run on sums, with a validation every third step."""
    config = tiny_config(folder)
    config.stage = "sft"
    del config.data.sources.one
    config.data.sources.two = source(kind="chat", path=f"{folder}/chat.jsonl")
    config.data.chat_format = "plain"
    config.eval.every = 3
    config.train.patience = 9
    return config


def sft(folder, **overrides):
    config = sft_config(str(folder))
    config.update_from_flattened_dict(overrides)
    return resolve(config)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sft")
    lines = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(12) for b in range(12)]
    (folder / "chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.py").write_text(CONFIG_FILE.format(folder=str(folder)))
    return folder


@pytest.fixture(scope="module")
def finished(folder):
    """The workdir of an uninterrupted run."""
    assert train(sft(folder), folder / "finished") == 0
    return folder / "finished"


def test_a_run_of_fine_tuning_reports_what_it_is_about(finished):
    records = read_metrics(finished)
    assert [record["step"] for record in records if "val_loss" in record] == [3, 6, 9, 12]
    assert all("val_bits_per_byte" not in record for record in records)
    report = (finished / "report.md").read_text()
    assert "conversations with" in report and "tokens of the assistant" in report and "gzip" not in report
    for sample in read_samples(finished)[12]:
        assert sample.prompt.startswith("[BOS]") and sample.prompt.endswith("=")


def test_the_held_out_loss_is_that_of_the_answers_alone(folder, finished):
    """A forward pass of every held-out conversation by itself, its log-probabilities summed in float64."""
    config = sft(folder)
    data = shared_data(config, range(config.train.batch_size))
    loaded = load_pretrained(finished)
    model, total, count, prompts = K2(loaded.model), 0.0, 0, set()
    logits_of = jax.jit(lambda ids: model.apply({"params": loaded.params}, ids).logits)
    for batch in data.held_out.batches(config.train.batch_size):
        for tokens, exits in zip(batch.tokens, batch.exit, strict=True):
            at = 0
            while at < len(tokens) and exits[at] > at + 1:
                ids, at = tokens[at : exits[at]], int(exits[at])
                text = BYTES.decode(ids)
                padded = np.zeros((1, len(tokens)), np.int32)
                padded[0, : len(ids)] = ids
                logits = np.asarray(logits_of(padded), np.float64)[0]
                logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
                answered = len(text.split("=")[1]) + 1
                total -= sum(logprobs[i - 1, ids[i]] for i in range(len(ids) - answered, len(ids)))
                count, prompts = count + answered, prompts | {text}
    assert len(prompts) == data.held_out.documents
    assert read_metrics(finished)[-1]["val_loss"] == pytest.approx(total / count, abs=1e-5)


@pytest.mark.slow
def test_killed_at_a_random_moment_and_resumed_gives_the_same_losses_bit_for_bit(folder, finished):
    workdir = folder / "killed"
    process = start(folder, workdir)
    wait_for_step(workdir, random.randrange(4, 10), process)
    time.sleep(random.random() * 0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert start(folder, workdir).wait(timeout=240) == 0
    assert losses(workdir) == losses(finished)
    assert committed_steps(workdir) == committed_steps(finished)


@pytest.mark.slow
def test_two_processes_fine_tune_as_one_does(folder, finished):
    workdir = folder / "together"
    ended = end(trainers(folder, workdir, 2))
    assert [code for code, *_ in ended] == [0, 0], ended
    for one, two in zip(losses(finished), losses(workdir), strict=True):
        np.testing.assert_allclose(np.array(one[1:], float), np.array(two[1:], float), rtol=1e-4)


RISING = {
    "train.steps": 60,
    "train.patience": 3,
    "eval.every": 2,
    "optimizer.learning_rate": 0.3,
    "optimizer.schedule.kind": "constant",
    "checkpoint.every": 1000,
    "checkpoint.keep": 1,
}
"""A rate so high that the held-out loss soon rises."""


@pytest.fixture(scope="module")
def impatient(folder):
    """A run that ended by patience, and its number of steps."""
    assert train(sft(folder, **RISING), folder / "impatient") == 0
    return folder / "impatient"


def validations(workdir):
    return [(record["step"], record["val_loss"]) for record in read_metrics(workdir) if "val_loss" in record]


def test_patience_ends_a_run_well_and_keeps_the_best_step(impatient):
    found = validations(impatient)
    steps, values = zip(*found, strict=True)
    best = int(np.argmin(values))
    assert steps[-1] < 60 and len(values) - 1 - best == 3  # three validations on end without a lower loss
    assert all(min(values[: i + 1]) < values[i - 3] or i < 3 for i in range(len(values) - 1))
    assert committed_steps(impatient) == sorted({steps[best], steps[-1]})
    report = (impatient / "report.md").read_text()
    assert f"Stopped by patience: the held-out loss was lowest, {values[best]:.4f}, at step {steps[best]}" in report
    assert f"best checkpoint: step {steps[best]}" in report


def test_the_best_step_is_named_best(impatient):
    steps, values = zip(*validations(impatient), strict=True)
    best = steps[int(np.argmin(values))]
    for name, value in jax.tree.leaves_with_path(load_pretrained(impatient / "best").params):
        exact = load_pretrained(impatient / "checkpoints" / str(best)).params
        np.testing.assert_array_equal(value, dict(jax.tree.leaves_with_path(exact))[name])


def test_no_best_step_where_none_is_marked(impatient, tmp_path):
    shutil.copytree(impatient, tmp_path / "unmarked")
    for step in committed_steps(tmp_path / "unmarked"):
        meta = tmp_path / "unmarked" / "checkpoints" / str(step) / "meta" / "metadata"
        values = {key: value for key, value in json.loads(meta.read_text()).items() if key not in ("best", "sha256")}
        meta.write_text(json.dumps(values | {"sha256": digest(values)}))
    with pytest.raises(UserError, match="marks no step as its best; that takes config"):
        load_pretrained(tmp_path / "unmarked" / "best")


def test_a_run_that_patience_ended_stays_there_until_it_is_raised(folder, impatient, tmp_path, capsys):
    workdir = shutil.copytree(impatient, tmp_path / "again")
    before, saved = losses(workdir), committed_steps(workdir)
    assert train(sft(folder, **RISING), workdir) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("stopped by patience") and f"best checkpoint {workdir}/best" in last
    assert losses(workdir) == before and committed_steps(workdir) == saved
    assert train(sft(folder, **(RISING | {"train.patience": 4})), workdir) == 0
    assert len(validations(workdir)) == 1 + sum(1 for record in before if record[2] is not None)


def test_a_run_that_was_interrupted_ends_at_the_same_step(folder, impatient, tmp_path):
    """What patience has seen comes from the checkpoint, not from the process."""
    last, log = validations(impatient)[-1][0], Run.log

    def interrupted(run, step, record):
        log(run, step, record)
        if step == last - 2:
            raise KeyboardInterrupt

    config = sft(folder, **(RISING | {"checkpoint.every": last - 3}))
    with mock.patch.object(Run, "log", interrupted), pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "parts")
    assert train(config, tmp_path / "parts") == 0
    assert losses(tmp_path / "parts") == losses(impatient)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"data.sources.two.kind": "text"}, "stage sft trains on chat, trajectories, token_rows, image_chat"),
        ({"stage": "pretrain"}, "config.data.sources.two.kind is 'chat', which is for stage sft"),
        ({"data.tokenizer.kind": "bpe"}, "bpe is trained on texts"),
        ({"data.sources.two.filters": ("correct",)}, "filters are for the kinds trajectories and image_trajectories"),
    ],
)
def test_data_that_do_not_fit_the_stage_are_refused(folder, overrides, words):
    with pytest.raises(UserError, match=words) as error:
        sft(folder, **overrides)
    assert "\n" not in str(error.value)
