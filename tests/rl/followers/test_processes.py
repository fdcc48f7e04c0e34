"""Runs of two and four processes: one of them runs the episodes, all of them train on these, and they end together."""

import json
import re
import signal
import time

import numpy as np
import pytest

from k2jax.report.metrics import read_metrics
from k2jax.trajectory.store import TrajectoryStore
from tests.rl.followers.noisy import LOG, calls
from tests.train.together import end, free_port, python

RUN = {
    "rl.rollout.prompts": 2,
    "rl.rollout.samples": 2,
    "rl.tasks.noisy.max_tokens": 8,
    "rl.updates": 1,
    "rl.eval_prompts": 1,
    "eval.every": 1000,
    "checkpoint.every": 1,
    "train.batch_size": 4,
    "train.steps": 2,
}
QUIET = {
    "quiet": True,
    "model.attention": "gqa",
    "model.dense_layers": 2,
    "model.gqa.kv_heads": 1,
    "model.gqa.head_dim": 8,
    "rl.rollout.prompts": 2,
    "rl.rollout.samples": 2,
    "rl.tasks.low.max_tokens": 8,
    "rl.updates": 1,
    "rl.eval_prompts": 0,
    "checkpoint.every": 1,
    "train.batch_size": 4,
    "train.steps": 3,
}
"""A run without tools."""
WORKERS = {"rl.rollout.sampler": "workers", "rl.rollout.look_ahead": 1}
LINE = r"error: (?:process \d+: )?(.*)"


def started(workdir, count, overrides, *more, devices=1):
    """The processes of a run on ``devices`` each."""
    port, whole = free_port(), overrides | {"rl.rollout.data": count * devices, "rl.rollout.slots": count * devices}
    # Compilation, which takes most of the time, is quick.
    flags = (
        f"--xla_force_host_platform_device_count={devices} --xla_cpu_enable_concurrency_optimized_scheduler=false "
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    )
    environment = {LOG: f"{workdir}.calls", "XLA_FLAGS": flags, "PJRT_NPROC": str(3 * devices)}
    arguments = ["-m", "tests.rl.followers.member", str(workdir), json.dumps(whole), *map(str, more)]
    several = range(count)
    if count == 1:
        environment |= dict.fromkeys(("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"), "")
    return [python(arguments, index, count, port, **environment) for index in several]


def ended(workdir, count, overrides, *more, devices=1):
    """The workdir of a run that has ended well."""
    told = end(started(workdir, count, overrides, *more, devices=devices), 900)
    assert [code for code, _, _ in told] == [0] * count, told
    return workdir


def rows(workdir, count):
    return [json.loads((workdir / f"rows-{index}.json").read_text()) for index in range(count)]


def stored(workdir):
    store = TrajectoryStore(workdir / "trajectories")
    return [trajectory for step in store.steps() for trajectory in store.read(step)]


def bytes_of(trajectory):
    """The text of a trajectory, whose tokens are two marks and bytes."""
    told = (bytes(int(token) - 2 for token in node.tokens if token > 1) for node in trajectory.nodes)
    return b"".join(told).decode("latin1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "sampler"), [(2, {}), (4, {}), (2, WORKERS), (4, WORKERS | {"rl.rollout.workers": 2})]
)
def test_each_episode_runs_once_and_all_processes_train_on_it(tmp_path, count, sampler):
    workdir = ended(tmp_path / "several", count, RUN | sampler)
    told = calls(f"{workdir}.calls")
    trained, evaluated = stored(workdir), 2 * 2  # one prompt, greedily and once sampled, before and after
    assert len(trained) == 8 and not any(each.status == "masked" for each in trained)
    assert sum(call[0] == "reset" for call in told) == len(trained) + evaluated
    judged = sum(each.status == "finished" for each in trained)
    assert judged <= sum(call[0] == "verifier" for call in told) <= judged + evaluated
    heard = [" ".join(call[3:]) for call in told if call[0] == "tool"]
    assert len(set(heard)) == len(heard) > 4  # no two observations are equal
    said = "".join(map(bytes_of, trained))
    assert sum(each in said for each in heard) >= len(heard) - evaluated
    assert len({call[1] for call in told if call[0] == "reset"}) == max(1, sampler.get("rl.rollout.workers", 1))
    first, *others = rows(workdir, count)
    assert len(first) >= 1 and all(other == first for other in others)
    assert {thread for _, _, thread in first} == {"MainThread"}

    alone = ended(tmp_path / "one", 1, RUN, workdir)
    assert [each[:2] for each in rows(alone, 1)[0]] == [each[:2] for each in first]
    for record, other in zip(read_metrics(workdir)[1:], read_metrics(alone)[1:], strict=True):
        np.testing.assert_allclose(record["loss"], other["loss"], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_in_lockstep_two_processes_repeat_one_with_as_many_devices(tmp_path):
    several = {"rl.rollout.prompts": 4, "rl.rollout.samples": 4, "rl.tasks.low.max_tokens": 60}  # rewards differ
    run = QUIET | several | {"train.steps": 1}
    one = ended(tmp_path / "one", 1, run, devices=4)
    two = ended(tmp_path / "two", 2, run, devices=2)
    assert rows(one, 1)[0] and rows(two, 2) == rows(one, 1) * 2
    for file in (one / "trajectories").iterdir():
        assert file.read_bytes() == (two / "trajectories" / file.name).read_bytes()
    [record], [other] = read_metrics(two), read_metrics(one)
    for name in ("loss", "grad_norm", "update_norm", "tokens/mismatch"):
        np.testing.assert_allclose(record[name], other[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "halt", "differ"])
def test_a_follower_that_is_lost_or_comes_apart_is_named_and_the_run_goes_on(tmp_path, how):
    workdir = tmp_path / "run"
    several = started(workdir, 2, QUIET, how, 1)
    victim = several[1]
    while victim.poll() is None and _state(victim.pid) != "T":
        assert several[0].poll() is None
        time.sleep(0.05)
        if how == "differ" and several[0].poll() is not None:
            break
    since = time.monotonic()
    several[0].wait(30)
    seconds = time.monotonic() - since
    if how == "halt":
        victim.send_signal(signal.SIGKILL)
    told = end(several, 30)
    assert told[0][0] == 1, told
    print(how, f"{seconds:.1f} s", told[0][2])
    lines = [re.findall(LINE, stderr) for _, _, stderr in told]
    gone = r"does not respond since step [23].*resumes from step [12]"
    reason = "stopped: it is about to do .*come apart" if how == "differ" else gone
    assert re.match(rf"process 1 \(\S+\) {reason}", lines[0][-1]), lines
    assert [record["step"] for record in read_metrics(ended(workdir, 2, QUIET))] == [1, 2, 3]


def _state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
