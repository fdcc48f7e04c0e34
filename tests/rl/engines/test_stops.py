"""A run that waits for an engine stops when it is asked to once, and what it had done is not lost."""

import re
import signal

import pytest

from k2jax.checkpoint import committed_steps
from k2jax.report.metrics import read_metrics
from tests.rl.engines.supervised import TRAINERS, SupervisedRun
from tests.rl.engines.test_killed_processes import CHANGES
from tests.rl.test_kills_with_sandboxes import temporary  # noqa: F401
from tests.rl.tiny import CONFIG_FILE

STOP_SECONDS = 60.0


def waits(log):
    """Whether a run waits for an engine since it has lost one."""
    parts = re.split(r"the engine \S+ (?:has left|is lost)", log)
    return len(parts) > 1 and "the run waits for one" in " ".join(parts[-1].split())


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["alone", *TRAINERS])
def test_one_signal_stops_a_run_that_waits_without_an_engine(asked, tmp_path, temporary):  # noqa: F811
    (tmp_path / "config.py").write_text(CONFIG_FILE)
    flags = [f"--config.{k}={v}" for k, v in (CHANGES | {"checkpoint.every": 1000, "train.steps": 1000}).items()]
    run = SupervisedRun(tmp_path, flags, own=False, trainers=TRAINERS[: 1 if asked == "alone" else 2])
    workdir = run.workdir
    try:
        run.start()
        run.wait(lambda: workdir.exists() and len(read_metrics(workdir)) >= 3)
        run.signal("engine", signal.SIGKILL)
        # Groups that are complete may still be trained on.
        run.wait(lambda: waits(run.log("controller")))
        run.signal("controller" if asked == "alone" else asked, signal.SIGTERM)
        told = run.ended(STOP_SECONDS)
        assert [code for code, _ in told] == [143] * len(told), told
        done = read_metrics(workdir)[-1]["step"]
        assert committed_steps(workdir) == [done]
        assert f"the run goes on from step {done}" in " ".join(told[0][1].split())
        run.assert_nothing_runs()
        run.flags.append(f"--config.train.steps={done + 1}")
        run.start()
        run.end()
        assert [each["step"] for each in read_metrics(workdir)] == list(range(1, done + 2))
    finally:
        run.close()
