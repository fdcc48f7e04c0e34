"""Runs of several processes and an engine of their own, of which one after another is killed at random moments.

``K2JAX_TEST_KILLS=50 K2JAX_TEST_SEED=7 python -m pytest -m slow tests/rl/engines/test_killed_processes.py -s`` kills
more often, and says of whom and how long the others then took to end.
"""

from collections import Counter
import json
import os
import random
import signal
import time

import pytest

from k2jax.checkpoint import committed_steps
from k2jax.report.metrics import read_metrics
from k2jax.rl.sync.checkpoint_engine import store_folder
from k2jax.rl.workers.group_log import FOLDER
from k2jax.trajectory.store import TrajectoryStore
from tests.rl.engines.supervised import WHOLE_SECONDS, SupervisedRun
from tests.rl.engines.test_engine_runs import steps_of
from tests.rl.test_kills_with_sandboxes import temporary  # noqa: F401
from tests.rl.tiny import CONFIG_FILE
from tests.rl.workers.killing import complete, content

KILLS = int(os.environ.get("K2JAX_TEST_KILLS", "4"))
SEED = int(os.environ.get("K2JAX_TEST_SEED", "1"))
STEPS, PROMPTS, SAMPLES = 24, 2, 4
CHANGES = {
    "model.attention": "gqa",
    "model.dense_layers": 2,
    "model.gqa.kv_heads": 1,
    "model.gqa.head_dim": 8,
    "rl.rollout.sampler": "workers",
    "rl.rollout.look_ahead": 2,
    "rl.rollout.prompts": PROMPTS,
    "rl.rollout.samples": SAMPLES,
    "rl.rollout.slots": 8,
    "rl.tasks.low.max_tokens": 12,
    "rl.updates": 1,
    "rl.eval_prompts": 0,
    "rl.keep_trajectories": 100,
    "rl.engines.placement": "separate",
    "checkpoint.every": 4,
    "train.batch_size": 4,
    "train.steps": STEPS,
}
AT_WORK, WORK_SECONDS = 0.7, 8.0
"""Share of the kills that wait for a step, and how long the process then lives on at most [s]."""
MOST_ENGINES = 2  # that are killed in a row: a run whose own engines die and die ends
UNHARMED = 2  # runs that nobody kills, the first of which compiles, and the last says how long they take


def assert_trained(workdir, known):
    """Every prompt was trained on once, every complete group as it was, and every update is in the checkpoint."""
    records = [record for record in read_metrics(workdir) if "reward" in record]
    assert [record["step"] for record in records] == list(range(1, 1 + STEPS)) and committed_steps(workdir)[-1] == STEPS
    store = TrajectoryStore(workdir / "trajectories")
    trained = {step: list(store.read(step)) for step in store.steps()}
    of_key = {each.key: content(each) for of_step in trained.values() for each in of_step}
    expected = [(i, j, k) for i in range(1, 1 + STEPS) for j in range(PROMPTS) for k in range(SAMPLES)]
    assert sorted(each.key for of_step in trained.values() for each in of_step) == expected
    for place, of_group in known.items():
        for sample, once in of_group.items():
            assert of_key[(*place, sample)] == once, f"the group {place} was complete and sampled again"
    updates = 0
    for step, record in enumerate(records, 1):
        rewards = {}
        for each in trained[step]:
            rewards.setdefault(each.key[:2], set()).add(each.reward.value)
        has_signal = any(len(values) > 1 for values in rewards.values())
        assert record["updates"] == has_signal
        updates += has_signal
    [meta] = (workdir / "checkpoints" / str(STEPS)).glob("meta/metadata")
    assert json.loads(meta.read_text())["updates"] == updates > 0


@pytest.mark.slow
def test_kills_of_every_process_lose_no_group_and_end_all_others_in_time(tmp_path, temporary):  # noqa: F811
    chance, kills, ends, number = random.Random(SEED), [], [], 0
    seconds = 0.0
    while len(kills) < KILLS or number < UNHARMED:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.py").write_text(CONFIG_FILE)
        run, known = SupervisedRun(folder, [f"--config.{k}={v}" for k, v in CHANGES.items()], own=number % 2 == 0), {}
        try:
            if number < UNHARMED:
                began = time.monotonic()
                run.start()
                run.end()
                seconds = time.monotonic() - began
            else:
                kills += killed_to_the_end(run, known, chance, seconds, KILLS - len(kills))
        finally:
            run.close()
        ends += run.seconds
        assert_trained(run.workdir, known)
        assert not list(temporary.iterdir())
        store = store_folder(run.workdir)
        assert not list(store.parent.glob(f"{store.name}*"))
        number += 1
    print(f"a run takes {seconds:.1f} s;", dict(Counter(victim for victim, *_ in kills)), kills)
    print(f"{len(ends)} times the other trainer ended, at last after {max(ends, default=0):.1f} s; runs: {number}")


def killed_to_the_end(run, known, chance, seconds, most):
    """Kills processes of a run and starts it again until it has ended; returns who was killed, when and behind what."""
    kills, engines, deadline = [], 0, time.monotonic() + 20 * WHOLE_SECONDS
    while time.monotonic() < deadline:
        run.start()
        if len(kills) == most:
            run.end()
            break
        waits = chance.random() < AT_WORK
        delay = chance.random() * (WORK_SECONDS if waits else seconds)
        began, before = time.monotonic(), steps_of(run.workdir)
        while (time.monotonic() < began + delay or waits) and not run.has_ended():
            if waits and steps_of(run.workdir) > before:
                waits, began = False, time.monotonic()
            known |= complete(run.workdir / FOLDER, SAMPLES)
            time.sleep(0.05)
        if run.has_ended():
            run.end()
            break
        there = run.victims()
        victim = chance.choice([name for name in sorted(there) if name != "engine" or engines < MOST_ENGINES])
        os.kill(there[victim], signal.SIGKILL)
        kills.append((victim, round(delay, 1), max(committed_steps(run.workdir), default=0)))
        print("killed, seconds behind the start or a step, checkpoint:", *kills[-1], flush=True)
        engines = engines + 1 if victim == "engine" else 0
        run.mourn(victim)
        known |= complete(run.workdir / FOLDER, SAMPLES)
    known |= complete(run.workdir / FOLDER, SAMPLES)
    return kills
