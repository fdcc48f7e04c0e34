"""The agent swarm: 32 assignments of one answer beside the longest, and a thousand orchestrators on one event loop.

Episodes, toolsets and records are the real ones; engines and tools take drawn times. Sub-agents run in the process of
their orchestrators, as they do where ``rl.rollout.workers`` is 0. The event loop that all share must not be late: the
99th percentile is to stay below 100 ms. A thousand orchestrators take nine minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
import dataclasses
import os
import random
import time
from typing import Any

import numpy as np

from k2jax.agents.collect.event_loop import Lag, LagProbe, calm_collector, run
from k2jax.agents.collect.simulated import SimulatedEngine, Simulation
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import EpisodeKey, spawned_seed
from k2jax.agents.spawning import Spawner, SubEpisode
from k2jax.agents.task import Task
from k2jax.bench.asynchronous_scale import LargestMemory, idle_process
from k2jax.bench.rollout import LIMIT
from k2jax.bench.slow_turns import register
from k2jax.bench.timing import Row, cost_row
from k2jax.client import Completion, Sampling, new_completion
from k2jax.text import byte_tokenizer, configured_chat
from k2jax.trajectory import Trajectory
from k2jax.trajectory.swarm import swarm_record

ASSIGNMENTS, SECONDS, ALLOWED = 32, 0.5, 1.2
"""Assignments of one answer, mean time of a call of their tool [s], and most of the longest that all may take."""
ORCHESTRATORS, LIVE, ANSWER = 1_000, 20, 20.0
"""Orchestrators, most live sub-agents of each, and mean time of an answer of the engine [s]."""
TOKENIZER = byte_tokenizer()
CHAT = configured_chat(TOKENIZER, "compact")
GO = "go"
_GO = TOKENIZER.encode(GO)


@dataclasses.dataclass(kw_only=True)
class SwarmScale:
    """What was measured of many orchestrators.

    Attributes:
        lag: of their event loop.
        idle: of a process that did nothing meanwhile.
        live: sub-agents that were at work at most, of all orchestrators.
        peak: the same of one.
        assigned: tasks of sub-agents.
        finished: of these.
        seconds: time of all [s].
        processor: that the process computed [s].
        memory: of the process at most [bytes].
    """

    lag: Lag
    idle: Lag
    live: int
    peak: int
    assigned: int
    finished: int
    seconds: float
    processor: float
    memory: int


def measure(rounds: int = 10) -> list[Row]:
    """Rows of assignments, the medians of some rounds, and of one run of many orchestrators."""
    return [assignments_row(rounds), scale_row(run_scale())]


def assignments_row(rounds: int, seconds: float = SECONDS) -> Row:
    """The time of all assignments of one answer, and of the longest of them.

    Args:
        rounds: of other drawn times.
        seconds: mean time of a call of a tool [s].
    """
    pairs = sorted(
        (asyncio.run(_assignments(seed, seconds)) for seed in range(rounds)), key=lambda pair: pair[0] / pair[1]
    )
    taken, longest = pairs[len(pairs) // 2]
    name = (
        f"{ASSIGNMENTS} assignments of one answer, tools of {seconds:g} s in the mean; at most {ALLOWED} of the longest"
    )
    return cost_row(name, taken, longest, "s", "the longest", device=_device())


def scale_row(result: SwarmScale) -> Row:
    """The row of many orchestrators."""
    name = f"event loop's lag p99, {ORCHESTRATORS:,} orchestrators and up to {result.live:,} live sub-agents"
    return cost_row(name, result.lag.p99 * 1e3, LIMIT * 1e3, "ms", "the limit", device=_device())


def _device() -> str:
    return f"{os.cpu_count()} processors"


async def _assignments(seed: int, seconds: float) -> tuple[float, float]:
    """Seconds of the answer with all assignments, and of the longest sub-agent by itself."""
    engine = SwarmEngine(Simulation(answer=0.0, tool=seconds), lambda seed: ASSIGNMENTS)
    swarm = _Swarm(engine, seconds, seed)
    await swarm.orchestrate(0)
    times = swarm.times[:ASSIGNMENTS]  # those of the first answer, which have all ended before the second
    first, last = min(began for began, _ in times), max(ended for _, ended in times)
    return last - first, max(ended - began for began, ended in times)


def run_scale(orchestrators: int = ORCHESTRATORS, answer: float = ANSWER) -> SwarmScale:
    """Runs orchestrators at a time, and prints what was measured.

    Args:
        orchestrators: each assigns 1 to ``LIVE`` tasks in one answer, twice; they begin one after another within the
            time of an answer.
        answer: mean time of an answer of the engine [s].
    """
    result = run(_scale(orchestrators, answer))
    lag, idle = result.lag, result.idle
    print(
        f"{orchestrators:,} orchestrators in {result.seconds:.0f} s: {result.assigned:,} assignments, "
        f"{result.finished:,} finished; at most {result.live:,} sub-agents at work, {result.peak} of one orchestrator\n"
        f"event loop late by p50 {lag.p50 * 1e3:.1f} ms, p99 {lag.p99 * 1e3:.1f} ms, at most "
        f"{lag.maximum * 1e3:.0f} ms; p99 of what its process computed meanwhile {lag.own_p99 * 1e3:.1f} ms\n"
        f"a process that did nothing was late by p99 {idle.p99 * 1e3:.1f} ms, at most {idle.maximum * 1e3:.0f} ms\n"
        f"{result.processor / (result.assigned + orchestrators) * 1e3:.1f} ms of a processor for an episode; "
        f"{os.getloadavg()[1]:.1f} programs wanted one of {os.cpu_count()} processors\n"
        f"memory at most {result.memory / 2**20:.0f} MiB"
    )
    return result


async def _scale(orchestrators: int, answer: float) -> SwarmScale:
    engine = SwarmEngine(Simulation(answer=answer, tool=answer / 20), lambda seed: random.Random(seed).randint(1, LIVE))
    swarm, began, processor = _Swarm(engine, answer / 20, 0), time.perf_counter(), time.process_time()
    calm_collector()
    idle: list[Lag] = []
    with idle_process(idle), LargestMemory() as memory:
        async with LagProbe() as probe:
            begins = np.linspace(0.0, answer, orchestrators)  # a thousand that begin at once are one long callback
            ended = await asyncio.gather(*map(swarm.orchestrate, range(orchestrators), begins))
    records = [swarm_record(each) for each in ended]
    return SwarmScale(
        lag=probe.lag,
        idle=idle[0],
        live=swarm.most,
        peak=max(record.peak for record in records),
        assigned=sum(record.assigned for record in records),
        finished=sum(record.finished for record in records),
        seconds=time.perf_counter() - began,
        processor=time.process_time() - processor,
        memory=memory.largest,
    )


class SwarmEngine(SimulatedEngine):
    """A simulated engine that knows orchestrators by their prompt: they create an agent, and twice assign some tasks.

    Args:
        simulation: times and numbers.
        width: number of tasks that an answer assigns, by its seed.
    """

    def __init__(self, simulation: Simulation, width: Callable[[int], int]):
        super().__init__(TOKENIZER, simulation)
        self._width, self._mean = width, simulation.answer

    async def generate(self, prompt: Sequence[int], sampling: Sampling, **options: Any) -> Completion:
        """See ``Client.generate``."""
        ids = np.asarray(prompt)
        if not np.array_equal(ids[1 : 1 + len(_GO)], _GO):
            return await super().generate(prompt, sampling, **options)
        answers = np.count_nonzero(
            (ids[:-1] == CHAT.end) & (ids[1:] != ids[0])
        )  # what the model wrote has no beginning
        assignments = "\n".join(["!a x look"] * self._width(sampling.seed))
        tokens = [*TOKENIZER.encode(("!n x", assignments, assignments, "done")[answers]), CHAT.end]
        await self.rest(0.5 * self._mean * (1 + random.Random(sampling.seed).expovariate(1)))
        return new_completion(tokens, np.zeros(len(tokens)), np.zeros(len(tokens)), "stop", None)


class _Swarm:
    """Orchestrators and their sub-agents in this process.

    Attributes:
        times: when each sub-agent began and ended [s].
        most: sub-agents at work at most.
    """

    def __init__(self, engine: SwarmEngine, tool: float, seed: int):
        register()
        self._engine, self._seed, self._live = engine, seed, 0
        self._tools = (f"simulated seconds={tool}", f"swarm form=compact most={2 * max(LIVE, ASSIGNMENTS)}")
        self.times: list[tuple[float, float]] = []
        self.most = 0

    async def orchestrate(self, number: int, begin: float = 0.0) -> Trajectory:
        """The episode of an orchestrator, which begins after a while [s]."""
        await asyncio.sleep(begin)
        message = ({"role": "user", "content": GO},)
        task = Task(f"{number}", "bench", message, "", environment="tools", tools=self._tools)
        key = EpisodeKey("train", 1, number, 0)

        async def run(spawned: SubEpisode) -> Trajectory:
            self._live += 1
            self.most, began = max(self.most, self._live), time.perf_counter()
            try:
                return await self._run(spawned.task, key, spawned_seed(self._seed, key, spawned.path), spawned.spawner)
            finally:
                self._live -= 1
                self.times.append((began, time.perf_counter()))

        return await self._run(task, key, self._seed, Spawner(run))

    async def _run(self, task: Task, key: EpisodeKey, seed: int, spawner: Spawner) -> Trajectory:
        options = {"key": key, "seed": seed, "sampling": Sampling(max_tokens=1024), "spawner": spawner}
        return await run_episode(task, self._engine, CHAT, TOKENIZER, ToolEnvironment(), **options)
