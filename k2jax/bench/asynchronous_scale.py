"""10,000 live episodes around the real training loop: how late the event loop is that all of them share with it.

Episodes, tools and verdicts run in two worker processes; the run's process has the window, the wire, complete groups
on disk, and the trainer with all that it compiles. Only the engine is simulated: its requests take drawn times, which
stand still while the trainer has the devices. The event loop must not be late: the 99th percentile stays below 100 ms,
from the first iteration to the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import functools
import json
import os
from pathlib import Path
import subprocess
import sys
import tempfile
import threading
import time

from k2jax import runtime
from k2jax.agents.collect.event_loop import Lag, LagProbe
from k2jax.agents.collect.simulated import Simulation
from k2jax.bench.rl_loop import iterate
from k2jax.bench.rollout import LIMIT, own_memory
from k2jax.bench.simulated_client import SimulatedContinuous
from k2jax.bench.slow_turns import register, slow_config
from k2jax.bench.timing import Row, cost_row
from k2jax.config import Config
from k2jax.inference.engine import Engine
from k2jax.rl.setup import open_rl
from k2jax.text.tokenizer import byte_tokenizer

EPISODES, ITERATIONS, PROMPTS, SAMPLES = 10_000, 10, 25, 8
"""Live episodes, iterations, prompts of one, and responses to each."""
ANSWER = 20.0
"""Mean time of an answer of the engine: an episode has four or so [s]."""


@dataclasses.dataclass(kw_only=True)
class TrainingScale:
    """What was measured of a run.

    Attributes:
        lag: of the run's event loop.
        idle: of a process that did nothing meanwhile.
        running: episodes that were under way at most.
        requests: of these, the ones that waited for the engine at most.
        trained: responses that the iterations had.
        seconds: time of the iterations [s].
        memory: of all processes at most [bytes].
    """

    lag: Lag
    idle: Lag
    running: int
    requests: int
    trained: int
    seconds: float
    memory: int


def measure(rounds: int = 10) -> list[Row]:
    """The row of one run; ``rounds`` is not read."""
    runtime.pause_collection()  # as the command k2jax.rl does until the first step is logged
    result = run_scale()
    name = f"event loop's lag p99, {result.running:,} live episodes around {ITERATIONS} iterations"
    device = f"{os.cpu_count()} processors"
    return [cost_row(name, result.lag.p99 * 1e3, LIMIT * 1e3, "ms", "the limit", device=device)]


def run_scale(
    episodes: int = EPISODES, iterations: int = ITERATIONS, prompts: int = PROMPTS, answer: float = ANSWER
) -> TrainingScale:
    """Trains with a number of live episodes, and prints what was measured.

    Args:
        episodes: live ones.
        iterations: of training.
        prompts: of an iteration.
        answer: mean time of an answer of the engine [s].
    """
    register()
    config, simulation = _config(episodes, iterations, prompts, answer), Simulation(answer=answer, tool=answer / 20)
    make_client = functools.partial(SimulatedContinuous, tokenizer=byte_tokenizer(), simulation=simulation)
    with tempfile.TemporaryDirectory(prefix="k2jax-scale-") as folder:
        result = _run(config, Path(folder) / "run", make_client, iterations)
    lag, idle = result.lag, result.idle
    print(
        f"{iterations} iterations of {prompts * SAMPLES} responses in {result.seconds:.0f} s, compilation included; at "
        f"most {result.running:,} live episodes, {result.requests:,} of them waiting for the engine\n"
        f"event loop late by p50 {lag.p50 * 1e3:.1f} ms, p99 {lag.p99 * 1e3:.1f} ms, at most "
        f"{lag.maximum * 1e3:.0f} ms; p99 of what its process computed meanwhile {lag.own_p99 * 1e3:.1f} ms; "
        f"longest of {lag.collections} garbage collections {lag.collecting * 1e3:.0f} ms\n"
        f"a process that did nothing was late by p99 {idle.p99 * 1e3:.1f} ms, at most {idle.maximum * 1e3:.0f} ms; "
        f"{os.getloadavg()[1]:.1f} programs wanted one of {os.cpu_count()} processors\n"
        f"memory of all processes at most {result.memory / 2**30:.2f} GiB"
    )
    return result


def _config(episodes: int, iterations: int, prompts: int, answer: float) -> Config:
    """A window that is full at all times: twice as many prompts as run may be drawn, and the run has more of them."""
    ahead = 2 * -(-episodes // (prompts * SAMPLES))
    sizes = {"prompts": prompts, "samples": SAMPLES, "max_length": 1024, "slots": max(8, episodes // 8)}
    window = {"sampler": "workers", "workers": 2, "concurrency": episodes, "look_ahead": ahead}
    return slow_config(
        options=(f"tool={answer / 20}",), steps=iterations + 2 * ahead, max_tokens=400, **sizes, **window
    )


def _run(
    config: Config, workdir: Path, make_client: Callable[[Engine], SimulatedContinuous], iterations: int
) -> TrainingScale:
    probe, running, trained, began = LagProbe(), 0, 0, time.perf_counter()
    made: list[SimulatedContinuous] = []

    def make(engine: Engine) -> SimulatedContinuous:
        made.append(make_client(engine))
        return made[0]

    idle: list[Lag] = []
    with idle_process(idle), LargestMemory() as memory, open_rl(config, workdir, make_client=make) as opened:
        run, sampler, _, _, methods = opened
        sampler.run(probe.__aenter__())
        methods.begin(run, sampler)
        for step in run.steps():
            if step == iterations:
                run.end("measured")
            iterate(step, *opened)
            running = max(running, int(sampler.record()["window/running"]))
            trained += int(sampler.record()["groups"]) * SAMPLES
        sampler.run(probe.__aexit__())
        seconds = time.perf_counter() - began
    return TrainingScale(
        lag=probe.lag,
        idle=idle[0],
        running=running,
        requests=made[0].max_running,
        trained=trained,
        seconds=seconds,
        memory=memory.largest,
    )


@contextlib.contextmanager
def idle_process(lags: list[Lag]) -> Iterator[None]:
    """Appends the lag of a process that does nothing during a ``with`` block."""
    argv = [sys.executable, "-m", "k2jax.bench.idle_process"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield
        lags.append(Lag(**json.loads(process.communicate()[0])))


class LargestMemory:
    """The memory of this process and of those that it has started, sampled for a ``with`` block.

    Attributes:
        largest: that was seen [bytes].
    """

    def __enter__(self) -> LargestMemory:
        self.largest, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._over.wait(5):
            self.largest = max(self.largest, sum(map(own_memory, _descendants(os.getpid()))))


def _descendants(pid: int) -> list[int]:
    """A process and all that it has started, directly or not."""
    started: list[int] = []
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/task").iterdir():
            started += map(int, (path / "children").read_text().split())
    return [pid, *(each for child in started for each in _descendants(child))]
