"""The rollout manager: as many episodes at a time as memory holds, a simulated engine, and workers that are killed.

Every episode goes through ``run_episode``: at least three requests to an engine in another process, two calls of a
tool, and 200 tokens with log-probabilities, all of drawn lengths and times. Workers are killed with SIGKILL at random
moments. The scheduler must not be late: the 99th percentile stays below 100 ms over the whole run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
import contextlib
import dataclasses
import os
from pathlib import Path
import random
import signal
import tempfile
import time
from typing import Any

from k2jax.agents.collect.engine_address import EngineAddress
from k2jax.agents.collect.engine_socket import EngineSocketClient
from k2jax.agents.collect.engine_start import start_engine
from k2jax.agents.collect.event_loop import run
from k2jax.agents.collect.journal import Emission, read_journal, stored_trajectory
from k2jax.agents.collect.manager import RolloutManager
from k2jax.agents.collect.queue_file import queued_samples, write_tasks
from k2jax.agents.collect.simulated import Simulation
from k2jax.agents.task import Budget, Task
from k2jax.bench.sandbox import available_memory
from k2jax.bench.timing import Row, cost_row
from k2jax.text.tokenizer import byte_tokenizer
from k2jax.trajectory import verify

TASKS, CAPACITY = 100_000, 5_000
"""Episodes, and coroutines of a worker."""
LIMIT = 0.1
"""Allowed lateness of the scheduler [s]."""
SAMPLES = 8
_BYTES_OF_AN_EPISODE = 60_000
_SECONDS_OF_AN_EPISODE = 0.7e-3
"""Time of an answer for each episode, so that the last begins before the first ends [s]."""


@dataclasses.dataclass(kw_only=True)
class ScaleRun:
    """What was measured of a run: see ``measure``."""

    tasks: int
    lag: Any
    seconds: float
    max_running: int
    max_requests: int
    kills: int
    memory: int
    tokens: int
    turns: int
    calls: int
    least: tuple[int, int, int]
    processors: tuple[float, float]


def measure(rounds: int = 1) -> list[Row]:
    """The row of one run; ``rounds`` is not read."""
    tasks = min(TASKS, int(0.6 * available_memory() / _BYTES_OF_AN_EPISODE) // SAMPLES * SAMPLES)
    result = run_scale(tasks)
    name = f"scheduler lag p99, {result.tasks:,} concurrent episodes, {result.kills} workers killed"
    lag = result.lag.p99
    device = f"{os.cpu_count()} processors"
    return [cost_row(name, lag * 1e3, LIMIT * 1e3, "ms", "the limit", device=device)]


def run_scale(tasks: int, kills: int = 6, seed: int = 0) -> ScaleRun:
    """Collects a number of episodes and prints what was measured.

    Raises:
        AssertionError: an episode was lost, doubled, or is not what it should be.
    """
    with tempfile.TemporaryDirectory(prefix="k2jax-rollout-") as folder:
        result = run(_scale(Path(folder), tasks, kills, random.Random(seed)))
        _check(Path(folder), result)
    lag = result.lag
    print(
        f"{tasks:,} episodes in {result.seconds:.0f} s: at most {result.max_running:,} at a time, "
        f"{result.max_requests:,} of them waiting for the engine\n"
        f"scheduler late by p50 {lag.p50 * 1e3:.1f} ms, p99 {lag.p99 * 1e3:.1f} ms, at most "
        f"{lag.maximum * 1e3:.0f} ms; p99 of what it did itself {lag.own_p99 * 1e3:.1f} ms; "
        f"longest of {lag.collections} garbage collections {lag.collecting * 1e3:.0f} ms\n"
        f"processors that this took on average {result.processors[0]:.2f}, that other programs took beside it "
        f"{result.processors[1]:.2f}, of {os.cpu_count()}\n"
        f"memory of all processes at most {result.memory / 2**30:.2f} GiB; {result.kills} workers killed with SIGKILL\n"
        f"{result.tokens:,} tokens, {result.turns:,} requests, {result.calls:,} calls of tools; an episode had "
        f"at least {result.least[0]}, {result.least[1]} and {result.least[2]}; every episode was emitted once"
    )
    return result


async def _scale(folder: Path, tasks: int, kills: int, rng: random.Random) -> ScaleRun:
    tokenizer = byte_tokenizer()
    tokenizer.save(folder / "tokenizer")
    mean = max(1.0, tasks * _SECONDS_OF_AN_EPISODE)
    simulation = Simulation(answer=mean, tool=mean / 20, max_calls=4)
    write_tasks(folder, [("simulated", _task(number, simulation)) for number in range(tasks // SAMPLES)])
    address = EngineAddress(str(folder / "engine.sock"))
    record = {
        "tokenizer": str(folder / "tokenizer"),
        "simulation": dataclasses.asdict(simulation),
    }
    options = {
        "tokenizer": str(folder / "tokenizer"),
        "chat": "compact",
        "seed": 0,
        "sampling": {"simulated": {"max_tokens": 400}},
        "engines": [address.text],
        "added": [("toolset", "simulated", "k2jax.agents.collect.simulated:SimulatedTools")],
    }
    engine = start_engine(record, address)
    workers = -(-tasks // CAPACITY)
    manager = RolloutManager(
        folder,
        runner="k2jax.agents.collect.episodes:EpisodeRunner",
        options=options,
        workers=workers,
        capacity=CAPACITY,
    )
    watch, watcher = _Watch(engine.pid, address.text), None
    began, emissions, used = time.monotonic(), [], _processor_seconds()
    try:
        async with manager:
            watcher = asyncio.ensure_future(watch.follow(manager))
            killer = asyncio.ensure_future(_kill(manager, watch, kills, mean, rng))
            async for emission in manager.collect(queued_samples(folder, SAMPLES)):
                emissions.append(emission)
            killer.cancel()
    finally:
        if watcher is not None:
            watcher.cancel()
        engine.stdin.close()
        engine.wait()
    seconds = time.monotonic() - began
    ours, all_of_them = (after - before for after, before in zip(_processor_seconds(), used, strict=True))
    return _result(manager, emissions, seconds, watch, (ours / seconds, (all_of_them - ours) / seconds))


def _task(number: int, simulation: Simulation) -> Task:
    instruction = ({"role": "user", "content": f"Look at place {number} and say what is there."},)
    tool = f"simulated seconds={simulation.tool}"
    return Task(str(number), "simulated", instruction, "", environment="tools", tools=(tool,), budget=Budget(steps=12))


class _Watch:
    """Memory of all processes and requests at the engine, sampled while a run lasts."""

    def __init__(self, engine: int, path: str):
        self._engine, self._client = engine, EngineSocketClient(path)
        self.memory = self.requests = self.kills = 0

    async def follow(self, manager: RolloutManager) -> None:
        await self._client.connect()
        while True:
            pids = [os.getpid(), self._engine, *manager.worker_processes()]
            self.memory = max(self.memory, await asyncio.to_thread(lambda pids=pids: sum(map(own_memory, pids))))
            if self._client.load is not None:
                self.requests = max(self.requests, self._client.load.running)
            await asyncio.sleep(5)


async def _kill(manager: RolloutManager, watch: _Watch, kills: int, mean: float, rng: random.Random) -> None:
    """Kills random workers at random moments of the time that the episodes need at least."""
    while not manager.worker_processes():
        await asyncio.sleep(0.1)
    for _ in range(kills):
        await asyncio.sleep(rng.uniform(0, 2) * 2 * mean / kills)
        pid = rng.choice(manager.worker_processes() or [0])
        if pid:
            os.kill(pid, signal.SIGKILL)
            watch.kills += 1


def _processor_seconds() -> tuple[float, float]:
    """Processor time of this process and of its children that have ended, and of all programs of the machine [s]."""
    ours = sum(os.times()[:4])
    with open("/proc/stat") as lines:
        user, nice, system, _, _, interrupts, soft_interrupts, *_ = map(int, next(lines).split()[1:])
    return ours, (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


def _result(
    manager: RolloutManager,
    emissions: list[Emission],
    seconds: float,
    watch: _Watch,
    processors: tuple[float, float],
) -> ScaleRun:
    counts = Counter(emission.key for emission in emissions)
    assert max(counts.values()) == 1, "an episode was emitted twice"
    names = ("tokens", "turns", "calls")
    return ScaleRun(
        tasks=len(emissions),
        lag=manager.probe.lag,
        seconds=seconds,
        max_running=manager.max_running,
        max_requests=watch.requests,
        kills=watch.kills,
        memory=watch.memory,
        **{name: sum(getattr(emission, name) for emission in emissions) for name in names},
        least=tuple(min(getattr(emission, name) for emission in emissions) for name in names),
        processors=processors,
    )


def _check(folder: Path, result: ScaleRun) -> None:
    """The journal holds every episode once, and a sample of the trajectories is consistent."""
    journal = read_journal(folder)
    assert len({emission.key for emission in journal}) == len(journal) == result.tasks, "an episode is lost"
    assert all(emission.end == "done" and emission.status == "finished" for emission in journal)
    assert result.least[0] >= 200 and result.least[1] >= 3 and result.least[2] >= 2, result.least
    for emission in journal[:: max(1, len(journal) // 500)]:
        trajectory = stored_trajectory(folder, emission.place)
        assert trajectory.key == emission.key and not verify(trajectory)
        assert trajectory.sampled_tokens == emission.tokens


def own_memory(pid: int) -> int:
    """Memory of a process that no other shares [bytes]: proportional set size; 0 where it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0
