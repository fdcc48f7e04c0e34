"""Whole runs with engines in processes of their own: what they train on, what dies and goes on, and what is refused."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

from k2jax.agents.collect.engine_states import EngineRole
from k2jax.agents.collect.wire import VERSION
from k2jax.errors import UserError
from k2jax.report.metrics import read_metrics
from k2jax.rl.engines.run_record import RunRecord, is_done, remove_record, this_machine
from k2jax.rl.evaluation import HeldOutTasks
from k2jax.rl.loop import train
from k2jax.rl.setup import check_config
from k2jax.serve import run_engine
from k2jax.trajectory.steps import POLICY
from k2jax.trajectory.store import TrajectoryStore
from tests.rl.runs import ROOT, SECONDS, start
from tests.rl.tiny import CONFIG_FILE, tiny

OPTIONS = {
    "rl.rollout.sampler": "workers",
    "rl.rollout.prompts": 2,
    "rl.rollout.samples": 2,
    "rl.max_staleness": 1,
    "rl.tasks.low.options": ("letters=2", "turns=2"),
    "rl.tasks.low.max_tokens": 8,
    "rl.updates": 1,
    "rl.eval_prompts": 1,
    "rl.eval_samples": 1,
    "eval.every": 1,
    "checkpoint.every": 1,
    "train.batch_size": 2,
    "train.steps": 3,
    "rl.engines.placement": "separate",
}

STEPS = 40


def versions_of(trajectory):
    return np.concatenate([node.versions[node.mask] for node in trajectory.nodes])


def assert_trained_well(workdir, steps, most_stale):
    """Every prompt once, and no token of weights that are too old."""
    store = TrajectoryStore(workdir / "trajectories")
    trained = {step: list(store.read(step)) for step in store.steps()}
    keys = sorted(trajectory.key for of_step in trained.values() for trajectory in of_step)
    assert keys == [(step, place, sample) for step in range(1, 1 + steps) for place in (0, 1) for sample in (0, 1)]
    for step, trajectories in trained.items():
        for trajectory in trajectories:
            assert trajectory.status != "masked" and len(versions_of(trajectory))
            assert step - 1 - most_stale <= versions_of(trajectory).min() <= versions_of(trajectory).max() < step


@pytest.mark.slow
@pytest.mark.parametrize(("most_stale", "workers", "count"), [(1, 0, 2), (0, 1, 1)])
def test_a_run_trains_and_evaluates_on_tokens_of_the_right_versions(most_stale, workers, count, tmp_path, monkeypatch):
    evaluated, record = [], HeldOutTasks.record

    def noted(self, groups):
        evaluated.extend((group.key[0], set(versions_of(each))) for group in groups for each in group.trajectories)
        return record(self, groups)

    monkeypatch.setattr(HeldOutTasks, "record", noted)
    changes = {"rl.max_staleness": most_stale, "rl.rollout.workers": workers, "rl.engines.start": count}
    config = tiny(**OPTIONS | changes | {"rl.rollout.look_ahead": 1 + most_stale})
    assert train(config, tmp_path / "run") == 0
    assert_trained_well(tmp_path / "run", 3, most_stale)
    assert evaluated == [(step, {step}) for step in range(4) for _ in range(2)]
    records = [each for each in read_metrics(tmp_path / "run") if "reward" in each]
    assert [each["step"] for each in records] == [1, 2, 3] and all(each["trainer_wait_seconds"] > 0 for each in records)
    assert 0 < max(each["engine_busy"] for each in records) <= 1 and records[-1]["engines"] == count
    assert all("pause_seconds" not in each and (most_stale or each["window/stale"] == 0) for each in records)
    assert RunRecord.read(tmp_path / "run") is None and is_done(tmp_path / "run")
    assert train(config, tmp_path / "run") == 0, "a run that has come to its end has nothing to do"


def engine_of(workdir, log):
    """A started engine, whose lines go to a file."""
    command = [sys.executable, "-m", "k2jax.rollout", "engine", f"--follow={workdir}"]
    with open(log, "w") as file:
        return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=file, stderr=file)


def wait(condition, *processes):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end and all(process.poll() is None for process in processes)
        time.sleep(0.05)


def steps_of(workdir):
    with contextlib.suppress(FileNotFoundError):
        return sum("reward" in record for record in read_metrics(workdir))
    return 0


@pytest.fixture
def started():
    """Notes a process, which is killed where the test has not ended it."""
    with contextlib.ExitStack() as opened:

        def note(process):
            opened.callback(process.kill)
            return process

        yield note


@pytest.mark.slow
def test_engines_join_a_run_and_are_killed_in_it_and_outlive_a_run_that_is_killed(tmp_path, started):
    (tmp_path / "config.py").write_text(CONFIG_FILE)
    workdir, logs = tmp_path / "run", [tmp_path / f"{number}.log" for number in range(3)]
    changes = OPTIONS | {"rl.engines.start": 0, "train.steps": STEPS, "rl.keep_trajectories": 100, "rl.eval_prompts": 0}
    del changes["rl.tasks.low.options"]
    flags = [f"--config.{name}={value}" for name, value in changes.items()]
    engines = [started(engine_of(workdir, logs[0]))]  # there is no run yet
    run = started(start(tmp_path / "config.py", workdir, *flags))
    wait(lambda: steps_of(workdir) >= 2, run, *engines)
    engines.append(started(engine_of(workdir, logs[1])))
    wait(lambda: "serving version" in logs[1].read_text(), run, *engines)
    engines[0].kill()  # at some moment of an iteration
    done = steps_of(workdir)
    wait(lambda: steps_of(workdir) >= done + 2, run, engines[1])
    run.send_signal(signal.SIGKILL)
    run.communicate()
    wait(lambda: "lost the run" in logs[1].read_text(), engines[1])
    assert steps_of(workdir) < STEPS and RunRecord.read(workdir) is not None
    run = started(start(tmp_path / "config.py", workdir, *flags))
    engines.append(started(engine_of(workdir, logs[2])))
    output, errors = run.communicate(timeout=SECONDS)
    assert run.returncode == 0, errors
    assert [engine.wait(30) for engine in engines[1:]] == [0, 0]
    assert logs[1].read_text().endswith(f"the run of {workdir} has ended\n")
    assert re.search(r"the engine \S+ has joined: 1 engine of the run", output)
    assert_trained_well(workdir, STEPS, 1)


def test_who_may_read_where_a_run_is_and_with_which_key(tmp_path):
    assert RunRecord.read(tmp_path) is None
    record = RunRecord(this_machine(), "/tmp/socket", "tcp://ab@host:1", "float32")
    for _ in range(2):
        record.write(tmp_path)
    file, folder = tmp_path / "engines/run.json", tmp_path / "engines"
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(folder.stat().st_mode)) == (0o600, 0o700)
    assert RunRecord.read(tmp_path) == record
    file.write_text(file.read_text().replace(f'"wire": {VERSION}', f'"wire": {VERSION + 1}'))
    with pytest.raises(UserError, match="is one of another k2jax"):
        RunRecord.read(tmp_path)
    remove_record(tmp_path)
    assert RunRecord.read(tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rl.engines.placement": "colocated", "rl.engines.start": 2}, "rl.engines.start is of engines in processes"),
        ({"rl.engines.placement": "colocated", "rl.engines.listen": "a:1"}, "rl.engines.listen is of engines in proc"),
        ({"rl.rollout.sampler": "lockstep", "rl.max_staleness": None}, "set config.rl.rollout.sampler to workers"),
        ({"rl.rollout.offload_state": True}, "rl.rollout.offload_state gives devices to an engine that is on others"),
        ({"rl.rollout.publish": True}, "rl.rollout.publish is what config.rl.engines.placement separate always does"),
        (
            {"rl.roles": {"helper": {"checkpoint": "x", "max_tokens": 8}}, "rl.engines.start": 1},
            "rl.engines.start 1 must be 0, or more than the 1 roles of config.rl.roles",
        ),
        ({"rl.engines.listen": "4567"}, "rl.engines.listen '4567' is no HOST:PORT"),
    ],
)
def test_what_engines_of_their_own_cannot_do_is_refused_before_anything_is_opened(changes, words):
    check_config(tiny(**OPTIONS))
    with pytest.raises(UserError, match=words):
        check_config(tiny(**OPTIONS | changes))


def test_an_engine_that_starts_when_its_run_has_done_all_steps_ends_and_otherwise_waits(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_engine, "DONE_SECONDS", 0.3)

    def serve(seconds):
        asyncio.run(asyncio.wait_for(run_engine._serve(tmp_path, None, EngineRole(POLICY), False), seconds))

    record = RunRecord(this_machine())
    record.write(tmp_path)
    remove_record(tmp_path, is_done=True)
    serve(30)
    assert capsys.readouterr().out.endswith(f"the run of {tmp_path} has ended\n")
    record.write(tmp_path)  # it is started again, and has no weights yet
    with pytest.raises(TimeoutError):
        serve(0.8)
    remove_record(tmp_path)  # it was stopped, and will go on
    with pytest.raises(TimeoutError):
        serve(0.8)
    assert "has ended" not in capsys.readouterr().out


@pytest.mark.parametrize("is_lost", [True, False])
def test_an_engine_whose_run_is_lost_before_its_first_weights_waits_for_it_to_go_on(
    is_lost, tmp_path, monkeypatch, capsys
):
    """And one of a run that is there and gives none ends, and says why."""
    monkeypatch.setattr(run_engine, "FIRST_SECONDS", 0.6)
    tries = []

    class Part:
        def open(self, record, role):
            pass

        def take(self, _):
            tries.append(time.monotonic())
            if is_lost and len(tries) == 2:
                server.close()
            raise UserError("tcp://127.0.0.1:1 does not answer")

    path = tmp_path / "socket"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    RunRecord(this_machine(), str(path)).write(tmp_path)

    def serve():
        asyncio.run(asyncio.wait_for(run_engine._serve(tmp_path, Part(), EngineRole(POLICY), False), 1.6))

    with server, pytest.raises(TimeoutError if is_lost else UserError):
        serve()
    output = capsys.readouterr().out
    assert output.count("does not answer") == 1 and ("lost the run" in output) is is_lost and len(tries) >= 2
    assert "has ended" not in output
