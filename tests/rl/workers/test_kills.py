"""Runs whose controller and workers are killed at random moments: no group is lost, none is trained on twice.

``K2JAX_TEST_KILLS=50 python -m pytest -m slow tests/rl/workers/test_kills.py`` kills more often.
"""

import os
from pathlib import Path
import random
import signal
import time

import numpy as np
import pytest

from k2jax.checkpoint import committed_steps
from k2jax.errors import UserError
from k2jax.report.metrics import read_metrics
from k2jax.rl.workers.group_log import FOLDER
from k2jax.trajectory.store import TrajectoryStore
from tests.agents.sandbox.backends import processes_below
from tests.rl import sandboxed
from tests.rl.runs import SECONDS, run_to_the_end, start
from tests.rl.test_kills import MOMENTS
from tests.rl.test_kills_with_sandboxes import assert_nothing_is_left, groups, names, orphans, temporary  # noqa: F401

KILLS = int(os.environ.get("K2JAX_TEST_KILLS", "5"))
STEPS, PROMPTS, SAMPLES = 6, 4, 4
FLAGS = [
    f"--config.train.steps={STEPS}",
    "--config.rl.eval_prompts=2",
    "--config.rl.keep_trajectories=100",
    "--config.rl.rollout.sampler=workers",
    "--config.rl.rollout.token_cap=0",
]

pytestmark = pytest.mark.slow


def complete(folder: Path) -> dict:
    """What a run's log of groups holds as complete at this moment, by the key of the group: tokens and rewards."""
    store, samples = TrajectoryStore(folder), {}
    for step in store.steps():
        try:
            for trajectory in store.read(step):
                samples.setdefault(trajectory.key[:2], {})[trajectory.key[2]] = content(trajectory)
        except UserError:  # deleted meanwhile, since every checkpoint has counted it
            continue
    return {place: of_group for place, of_group in samples.items() if len(of_group) == SAMPLES}


def content(trajectory):
    tokens = np.concatenate([node.tokens for node in trajectory.nodes] or [np.zeros(0, np.int32)]).tobytes()
    return tokens, trajectory.status, trajectory.reward and trajectory.reward.value


def worker_pids(pid):
    """Worker processes of a run."""
    return [
        child
        for child in processes_below(pid)
        if b"agents.collect.worker" in (Path(f"/proc/{child}/cmdline").read_bytes() if alive(child) else b"")
    ]


def alive(pid):
    return Path(f"/proc/{pid}/cmdline").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_kills_lose_no_complete_group_train_on_none_twice_and_leave_no_sandbox(workers, tmp_path, orphans, temporary):  # noqa: F811
    (tmp_path / "config.py").write_text(sandboxed.CONFIG_FILE)
    workdir, kills, run, seen, known = tmp_path / "run 0", [], 0, set(), {}
    flags = [*FLAGS, f"--config.rl.rollout.workers={workers}"]

    def folders():
        return list(temporary.glob("k2jax-sandbox-*"))

    while len(kills) < KILLS:
        process, deadline = start(tmp_path / "config.py", workdir, *flags), time.monotonic() + SECONDS
        moment = random.choice(["start", "rollout", "training", "saved", "group"])
        look = MOMENTS[moment][0] if moment != "group" else (lambda at: len(complete(at / FOLDER)))
        before, events = look(workdir), 0 if moment == "start" else random.choice([1, 2])
        while events and process.poll() is None and time.monotonic() < deadline:
            events, before = events - (look(workdir) != before), look(workdir)
            time.sleep(0.005)
        time.sleep(random.random() * 0.5 if events == 0 and moment != "start" else random.random() * 10)
        if workers and random.random() < 0.5 and (pids := worker_pids(process.pid)):
            os.kill(random.choice(pids), signal.SIGKILL)
            kills.append(("worker", moment))
            time.sleep(random.random() * 3)
        seen.update(processes_below(process.pid))
        process.kill()
        _, stderr = process.communicate()
        assert process.returncode in (0, -9), stderr
        known |= complete(workdir / FOLDER)
        assert_nothing_is_left(lambda: (names(orphans()), groups(seen), folders()))
        if process.returncode == 0:  # it has come to its end, and another one begins
            assert_every_prompt_once(workdir, known)
            run, known = run + 1, {}
            workdir = tmp_path / f"run {run}"
        else:
            kills.append(("controller", moment, max(committed_steps(workdir), default=0), len(known)))
    print("killed, in which phase, after a checkpoint, complete groups known so far:", kills)
    run_to_the_end(tmp_path / "config.py", workdir, *flags)
    assert_every_prompt_once(workdir, known)


def assert_every_prompt_once(workdir, known):
    """The store of a run has each of its prompts once, with every group that was ever complete as it was then."""
    assert [record["step"] for record in read_metrics(workdir) if "reward" in record] == list(range(1, 1 + STEPS))
    stored = TrajectoryStore(workdir / "trajectories")
    trained = [trajectory for step in stored.steps() for trajectory in stored.read(step)]
    keys = [trajectory.key for trajectory in trained]
    expected = [
        (step, place, sample) for step in range(1, 1 + STEPS) for place in range(PROMPTS) for sample in range(SAMPLES)
    ]
    assert sorted(keys) == expected
    of_key = {trajectory.key: content(trajectory) for trajectory in trained}
    for place, of_group in known.items():
        for sample, once in of_group.items():
            assert of_key[(*place, sample)] == once, f"the group {place} was complete and sampled again"
