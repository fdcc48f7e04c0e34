"""The last line of a run: it names what is there, and commands that exist."""

import shlex
from types import SimpleNamespace

import pytest

from k2jax import generate, trajectories
from k2jax.config import defaults, resolve, source
from k2jax.train.ending import last_line

COMMAND = "python -m k2jax.train --config=a.py --workdir='runs/a b'"


def run(tmp_path, stage="pretrain", exit_code=0, best=None, steps=(3, 12), **keys):
    workdir = tmp_path / "a b"
    for step in steps:
        (workdir / "checkpoints" / str(step)).mkdir(parents=True)
    config = defaults(stage, model="micro")
    if stage == "sft":
        config.data.sources = {"mine": source(kind="chat", path="mine.jsonl")}
        config.data.tokenizer.kind = "bytes"
    config.update_from_flattened_dict(keys)
    status = {0: "finished", 3: "stopped on a non-finite value", 143: "stopped by SIGTERM"}[exit_code]
    return SimpleNamespace(workdir=workdir, config=resolve(config), exit_code=exit_code, best=best, status=status)


@pytest.mark.parametrize(
    ("stage", "best", "keys", "module", "arguments"),
    [
        ("pretrain", None, {}, generate, ["--checkpoint={}", "--prompt=..."]),
        ("sft", 3, {"train.patience": 2}, generate, ["--checkpoint={}/best", "--prompt=...", "--chat"]),
        ("sft", None, {"data.chat_format": "plain"}, generate, ["--checkpoint={}", "--prompt=..."]),
        ("rl", None, {}, trajectories, ["{}"]),
    ],
)
def test_a_finished_run_names_report_checkpoint_and_a_command_that_shows_it(
    tmp_path, stage, best, keys, module, arguments
):
    ended = run(tmp_path, stage, best=best, **keys)
    line = last_line(ended, COMMAND)
    shown, _, command = line.partition("; next: ")
    checkpoint = f"best checkpoint {ended.workdir}/best (step 3)" if best else f"last checkpoint {ended.workdir}"
    assert shown.startswith(f"finished: report {ended.workdir}/report.md, {checkpoint}")
    assert best or shown.endswith("/checkpoints/12")
    expected = [part.format(ended.workdir) for part in arguments]
    assert shlex.split(command) == ["python", "-m", module.__name__, *expected]


@pytest.mark.parametrize(
    ("exit_code", "command", "end"),
    [
        (143, COMMAND, f"/checkpoints/12; to go on: {COMMAND}"),
        (143, None, "/checkpoints/12"),
        (3, COMMAND, "/checkpoints/12"),
    ],
)
def test_a_run_that_was_stopped_names_its_own_command_unless_the_same_would_stop_again(
    tmp_path, exit_code, command, end
):
    assert last_line(run(tmp_path, exit_code=exit_code), command).endswith(end)


def test_a_run_without_a_checkpoint_recommends_nothing_to_read(tmp_path):
    assert last_line(run(tmp_path, steps=()), COMMAND).endswith("/report.md, no checkpoint")
