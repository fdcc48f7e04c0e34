"""Nothing corrupt passes through a workdir: every damage is refused in one line, or changes nothing that is read."""

import dataclasses
import faulthandler
from pathlib import Path
import random
import shutil

import jax
import numpy as np
import pytest

from k2jax.batch import pack_row, stack_rows
from k2jax.checkpoint import committed_steps
from k2jax.convert.loading import load_pretrained, tokenizer_of
from k2jax.errors import UserError
from k2jax.report.metrics import MetricsLog, read_metrics
from k2jax.text.tokenizer import byte_tokenizer, train_bpe
from k2jax.train.run import Run
from k2jax.train.workdir import lock_workdir
from tests import corruption
from tests.train.programs import shared_program
from tests.train.tiny import tiny, write_corpus

HANGS = 120  # seconds
COUNT, MANY = 24, 1000


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return shared_program(tiny(folder, **{"train.steps": 4, "checkpoint.every": 2, "log.every": 1}))


@pytest.fixture(scope="module")
def pristine(program, tmp_path_factory):
    """The workdir of a run with two checkpoints, and all that is read of it."""
    workdir = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(0)
    rows = [pack_row([rng.integers(0, 300, 20)], 32) for _ in range(program.config.train.batch_size)]
    tokenizer = byte_tokenizer()
    tokenizer.save(workdir / "tokenizer")
    with lock_workdir(workdir, program.config), Run(program, workdir, {"tokenizer": tokenizer.fingerprint}) as run:
        for step in run.steps():
            run.update([stack_rows(rows)])
            run.log(step, {})
            run.save_when_due(step, {"phase": [step], "table": np.arange(step)})
    assert committed_steps(workdir) == [2, 4]
    return workdir, readers(program, workdir)


def readers(program, workdir: Path) -> dict:
    """What each reader of a workdir gives, by name: its values, or the error it ends with."""
    readings = {"resumed": lambda: _resumed(program, workdir), "pretrained": lambda: _pretrained(workdir)}
    return {name: _outcome(read) for name, read in readings.items()}


def _outcome(read):
    faulthandler.dump_traceback_later(HANGS, exit=True)
    try:
        return read()
    except Exception as error:
        return error
    finally:
        faulthandler.cancel_dump_traceback_later()


def _resumed(program, workdir: Path):
    identity = {"tokenizer": byte_tokenizer().fingerprint}
    with lock_workdir(workdir, program.config), Run(program, workdir, identity) as run:
        state = jax.device_get((run.state.step, run.state.params, run.state.opt_state))
        extra = run.extra
    with MetricsLog(workdir, resume_step=run.start, tensorboard=False) as log:
        damaged = log.damaged
    return [state, extra], [] if damaged else read_metrics(workdir)


def _pretrained(workdir: Path):
    return [load_pretrained(workdir).params, tokenizer_of(workdir).fingerprint], []


def equal(a, b) -> bool:
    (a, records), (b, others) = a, b
    leaves, treedef = jax.tree.flatten(a)
    more, same = jax.tree.flatten(b)
    if treedef != same or not all(np.array_equal(x, y) for x, y in zip(leaves, more, strict=True)):
        return False
    return not others or all(
        record.get(key) == old[key] for old, record in zip(records, others, strict=False) for key in old
    )


def verdict(case, copy: Path, expected, got) -> str:
    """``unchanged``, ``refused``, or what is wrong."""
    if not isinstance(got, Exception):
        return "unchanged" if equal(expected, got) else "silent"
    text = str(got)
    if not isinstance(got, UserError) or "\n" in text:
        return repr(got)
    files = [Path(name) for name in (case.file, case.other) if name]
    steps = {file.parts[1] for file in files if file.parts[0] == "checkpoints"}
    if steps and not any(str(copy / file) in text for file in files if file.parts[0] != "checkpoints"):
        named = any(f"checkpoints/{step}" in text for step in steps)
        mended = steps != {"4"} or "which is whole" in text
        return "refused" if named and mended else text
    return "refused" if str(copy) in text else text


def check(program, pristine, copy: Path, count: int, **choice) -> None:
    workdir, expected = pristine
    assert not any(isinstance(value, Exception) for value in expected.values()), expected
    cases = corruption.cases(workdir, **choice)
    refused, wrong = 0, {}
    for case in random.Random(0).sample(cases, min(count, len(cases))):
        for name, value in expected.items():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(workdir, copy)
            corruption.apply(case, copy)
            said = verdict(case, copy, value, readers_of(program, copy, name))
            refused += said == "refused"
            if said not in ("refused", "unchanged"):
                wrong[f"{name}: {case}"] = said
    assert not wrong, f"{len(wrong)} wrong: {wrong}"
    assert refused > count / 5


def readers_of(program, copy: Path, name: str):
    return _outcome(lambda: _resumed(program, copy) if name == "resumed" else _pretrained(copy))


def test_no_damage_passes(program, pristine, tmp_path):
    check(program, pristine, tmp_path / "run", COUNT, flips=6)


@pytest.mark.slow
def test_none_of_a_thousand_damages_passes(program, pristine, tmp_path):
    check(program, pristine, tmp_path / "run", MANY, flips=12, seed=1)


def test_a_lost_configuration_does_not_let_another_run_in(program, pristine, tmp_path):
    """The checkpoint itself says which run it belongs to."""
    copy = tmp_path / "run"
    shutil.copytree(pristine[0], copy)
    (copy / "config.json").unlink()
    train = dataclasses.replace(program.config.train, seed=program.config.train.seed + 1)
    other = shared_program(dataclasses.replace(program.config, train=train))
    with pytest.raises(UserError, match=r"holds another run: config\.train\.seed is 0 in the checkpoint and 1 here"):
        _resumed(other, copy)
    assert equal(pristine[1]["resumed"], _resumed(program, copy))


def test_another_tokenizer_is_refused(pristine, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(pristine[0], copy)
    train_bpe(["another text with other words"], 270).save(copy / "tokenizer")
    with pytest.raises(UserError, match=r"is not the tokenizer that .* was trained with"):
        tokenizer_of(copy)
