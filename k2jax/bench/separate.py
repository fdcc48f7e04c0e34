"""Engines of their own: an iteration whose rollouts run beside its update, against both one after the other.

The real loop on two processors: the trainer, its event loop and its verifiers are pinned to one, the engine to the
other. With ``rl.max_staleness=0`` the engine stands still while the trainer updates and the trainer waits for the
engine, so that such a run says what rollouts and update take alone under the same pinning. The sizes are such that both
take about equally long.

The first iterations are not measured, as they compile. Which of its programs an engine needs depends on what happens to
coincide: a run with overlap that is not measured goes before the one that is, and its programs are kept. The time of an
iteration with overlap is the median of the means of two that follow each other.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from pathlib import Path
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from k2jax.bench.rl_loop import iterate
from k2jax.bench.slow_turns import register, slow_config
from k2jax.bench.timing import Row, cost_row
from k2jax.config import Config
from k2jax.errors import UserError
from k2jax.rl.setup import open_rl

WARM_UP = 12
"""Iterations that are not measured."""
UNMEASURED = 40
"""Iterations of the run that compiles what the measured one may need."""
SIZES = {"prompts": 8, "samples": 8, "slots": 64, "concurrency": 96, "max_length": 160}
MAX_TOKENS = 128
TARGET = 1.2
"""Most time of an iteration, in the longer one of rollouts and update."""


class Iteration(NamedTuple):
    """Times of an iteration [s].

    Attributes:
        whole: from its begin to the next one's.
        waited: of this, the trainer's for the engine.
        stale: share of the groups that were dropped.
    """

    whole: float
    waited: float
    stale: float


def measure(rounds: int = 10) -> list[Row]:
    """Rows for an iteration with overlap: against its longer part, and against the sum of both."""
    register()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise UserError("the trainer and the engine need a processor each, and this process may use one")
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {cores[0]})
    alone = iterations(rounds, cores[1], max_staleness=0, look_ahead=1)
    iterations(UNMEASURED, cores[1], max_staleness=2, look_ahead=2)
    beside = iterations(max(2, rounds), cores[1], max_staleness=2, look_ahead=2)
    rollout = statistics.median(each.waited for each in alone)
    update = statistics.median(each.whole - each.waited for each in alone)
    # A batch that is waited for and one that is complete alternate.
    whole = statistics.median((each.whole + after.whole) / 2 for each, after in itertools.pairwise(beside))
    stale = statistics.mean(each.stale for each in beside)
    name = f"an iteration, rollouts {rollout:.2f} s and update {update:.2f} s alone, {100 * stale:.0f} % dropped"
    return [
        cost_row(name, whole, max(rollout, update), "s", f"the longer one; {1 / TARGET:.2f} wanted"),
        cost_row("the same", whole, rollout + update, "s", "their sum"),
    ]


def iterations(count: int, core: int, *, max_staleness: int, look_ahead: int) -> list[Iteration]:
    """Measured iterations of a run whose engine is pinned to a processor."""
    config = _config(WARM_UP + count + look_ahead, max_staleness, look_ahead)
    measured = []
    with tempfile.TemporaryDirectory(prefix="k2jax-bench-") as folder:
        workdir = Path(folder) / "run"
        command = [sys.executable, "-m", "k2jax.rollout", "engine", f"--follow={workdir}", "--ends_with_input"]
        quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
        with subprocess.Popen(command, **quiet) as engine:
            os.sched_setaffinity(engine.pid, {core})  # before it has other threads, which have the same
            with open_rl(config, workdir) as opened:
                run, sampler, *_, methods = opened
                methods.begin(run, sampler)
                for step in run.steps():
                    began = time.perf_counter()
                    iterate(step, *opened)
                    record = sampler.record()
                    seconds = time.perf_counter() - began
                    measured.append(Iteration(seconds, record["trainer_wait_seconds"], record["window/stale"]))
                    if step == WARM_UP + count:
                        run.end("measured")
            engine.stdin.close()
    return measured[WARM_UP:]


def _config(steps: int, max_staleness: int, look_ahead: int) -> Config:
    options = ("turns=1", "seconds=0.0")
    sizes = {"sampler": "workers", "look_ahead": look_ahead, **SIZES}
    config = slow_config(options=options, steps=steps, max_tokens=MAX_TOKENS, **sizes)
    engines = dataclasses.replace(config.rl.engines, placement="separate", start=0)
    rl = dataclasses.replace(config.rl, engines=engines, max_staleness=max_staleness)
    return dataclasses.replace(config, rl=rl)
