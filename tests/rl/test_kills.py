"""A run that is killed twenty times, wherever it happens to be, is the run that nobody killed.

``K2JAX_TEST_KILLS=3 python -m pytest -m slow tests/rl/test_kills.py`` kills less often.
"""

import contextlib
import os
import random
import time

import pytest

from k2jax.checkpoint import committed_steps
from k2jax.report.metrics import read_metrics
from tests.rl import methods, swarmed
from tests.rl.runs import SECONDS, assert_equal_runs, run_to_the_end, start
from tests.rl.tiny import CONFIG_FILE

KILLS = int(os.environ.get("K2JAX_TEST_KILLS", "20"))
FLAGS = ["--config.rl.eval_prompts=2", "--config.rl.keep_trajectories=100"]

pytestmark = pytest.mark.slow


def files(workdir, pattern):
    return set(workdir.glob(pattern))


def verdicts(workdir):
    """Their bytes; a run that goes on deletes those behind its checkpoint while they are counted."""
    bytes_of_files = 0
    for path in files(workdir, "verdicts/*"):
        with contextlib.suppress(FileNotFoundError):
            bytes_of_files += path.stat().st_size
    return bytes_of_files


def savings(workdir):
    """Checkpoints that are being written."""
    return {path for path in files(workdir, "checkpoints/*") if not path.name.isdecimal()}


# What happens in the folder of a run when it comes to a phase, and how long the process then lives on at most [s].
MOMENTS = {
    "start": (lambda workdir: 0, 12.0),
    "rollout": (lambda workdir: len(read_metrics(workdir)), 0.4),
    "scoring": (verdicts, 0.05),
    "training": (lambda workdir: len(files(workdir, "trajectories/*.k2t")), 0.3),
    "saving": (savings, 0.03),
    "saved": (committed_steps, 0.2),
}


def killed_in(moment, config_file, workdir, flags, watch=lambda process: None, moments=MOMENTS):
    """Whether a process was killed a random time after something has happened; False where it had ended before.

    ``watch`` is called with it before.
    """
    look, most_seconds = moments[moment]
    process, before, deadline = start(config_file, workdir, *flags), look(workdir), time.monotonic() + SECONDS
    events = random.choice([1, 1, 2, 3]) if moment != "start" else 0
    while events and process.poll() is None:
        assert time.monotonic() < deadline
        now = look(workdir)
        events, before = events - (now != before), now
        time.sleep(0.001)
    time.sleep(random.random() * most_seconds)
    watch(process)
    process.kill()
    _, stderr = process.communicate()
    assert process.returncode in (0, -9), stderr
    return process.returncode != 0


def test_twenty_kills_leave_no_trace(tmp_path):
    (tmp_path / "config.py").write_text(CONFIG_FILE)
    survive(tmp_path, [*FLAGS, "--config.train.steps=16"])


def test_twenty_kills_leave_no_trace_on_a_run_with_every_method_and_responses_of_several_iterations(tmp_path):
    methods.write_teachers(tmp_path)
    (tmp_path / "config.py").write_text(methods.CONFIG_FILE.format(folder=str(tmp_path)))
    survive(tmp_path, [*FLAGS, "--config.train.steps=8"])


def test_twenty_kills_leave_no_trace_on_an_orchestrator_with_sub_agents_at_work(tmp_path, monkeypatch):
    """Metrics, weights, and trajectories with those of their sub-agents, which are another model from halfway on."""
    swarmed.write_run(tmp_path, monkeypatch)
    live, moment = [], {"sub-agents": (lambda workdir: swarmed.live(tmp_path) > 0, 0.02)}
    survive(tmp_path, [*FLAGS, "--config.train.steps=6"], lambda _: live.append(swarmed.live(tmp_path)), moment)
    print("sub-agents at work at each kill, or end:", live)
    assert any(live)
    swarmed.assert_had_sub_agents(tmp_path / "expected")
    swarmed.assert_a_token_of_a_sub_agent_makes_another_run(tmp_path / "expected", tmp_path / "other")


def survive(tmp_path, flags, watch=lambda process: None, more=MOMENTS):
    """Kills runs of a config file ``KILLS`` times, and compares each that comes to its end with one that was left.

    ``watch`` is called with a process before it is killed; half of the kills are in one of ``more`` moments.
    """
    run_to_the_end(tmp_path / "config.py", tmp_path / "expected", *flags)
    kills, run = [], 0
    while len(kills) < KILLS:
        moment = random.choice(list(random.choice([MOMENTS, more])))
        if killed_in(moment, tmp_path / "config.py", tmp_path / f"run {run}", flags, watch, MOMENTS | more):
            kills.append((moment, max(committed_steps(tmp_path / f"run {run}"), default=0)))
        else:  # it has come to its end, and another one begins
            assert_equal_runs(tmp_path / f"run {run}", tmp_path / "expected")
            run += 1
    print("killed in a phase, after a checkpoint:", kills)
    run_to_the_end(tmp_path / "config.py", tmp_path / f"run {run}", *flags)
    assert_equal_runs(tmp_path / f"run {run}", tmp_path / "expected")
