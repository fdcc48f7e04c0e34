"""Reinforcement learning whose episodes wait for their tools alone: the sampler ``workers`` beside ``lockstep``.

Both run the real loop: a model of two layers in the real engine on this machine, verdicts, updates, weights to the
engine. The environment answers each message after a time that is drawn from an exponential distribution; other rows
show what waits for what within one iteration, by the trace of it. An iteration that compiles is not measured. Times
depend on what else the machine does; where the engine is slow beside the tools, ratios are smaller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
import contextlib
import json
from pathlib import Path
import tempfile
import time
from typing import Any

from k2jax.agents.environment import Services
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.task import Task
from k2jax.bench.slow_turns import TOOLS, Times, answer_briefly, register, slow_config
from k2jax.bench.timing import Row, cost_row, rate_row
from k2jax.config import Config
from k2jax.rl.loop import iterate
from k2jax.rl.setup import open_rl
from k2jax.rl.workers.tracing import EPISODES

TURNS, SECONDS = 8, 1.0
"""Answers of an episode, and mean time of the environment's answer [s]."""
PROMPTS, SAMPLES, SLOTS = 8, 8, 64
LOCKSTEP = 2
"""Iterations in lockstep that are measured at most: all of them take as long."""
SLOW_TOOL, SOON, OVERLAP = 5.0, 0.3, 0.15
"""Time of one slow tool, limit for the end of all other episodes, and limit for four calls of 0.1 s [s]."""
_SIZES = {"prompts": PROMPTS, "samples": SAMPLES, "slots": SLOTS, "max_length": 128}
WARM_UP = (0.0, 0.0, 0.02, 0.02, 0.1, 0.1, 0.1)
"""Factors of all times in the iterations that compile, which are not measured."""


def measure(rounds: int = 10) -> list[Row]:
    """Rows for the whole loop over ``rounds`` iterations, an iteration by itself, a slow tool, and calls at a time."""
    register()
    return [throughput_row(rounds), isolated_row(), slow_tool_row(), calls_row()]


def throughput_row(iterations: int, seconds: float = SECONDS) -> Row:
    """Groups per second of both samplers.

    Args:
        iterations: measured of ``workers``.
        seconds: mean time of the environment's answer [s].
    """
    options = (f"turns={TURNS}", f"seconds={seconds}")
    workers = _groups_per_second(iterations, options, sampler="workers", concurrency=2 * PROMPTS * SAMPLES)
    lockstep = _groups_per_second(min(LOCKSTEP, iterations), options, sampler="lockstep")
    name = f"groups a second: {SLOTS} slots, episodes of {TURNS} turns, tools of {seconds:g} s in the mean"
    return rate_row(name, workers, lockstep, "groups/s", "lockstep")


def _groups_per_second(iterations: int, options: tuple[str, ...], **rollout: Any) -> float:
    # The run would have more iterations: its window is as full at the end as in its midst. One more than the warm-up is
    # not measured, since it takes over what went quickly.
    first, last = len(WARM_UP) + 1, len(WARM_UP) + 1 + iterations
    config = slow_config(options=options, steps=last + 2, **_SIZES, **rollout)
    with tempfile.TemporaryDirectory(prefix="k2jax-bench-") as folder, _opened(config, Path(folder)) as opened:
        for step in _warmed_up(opened[0].steps()):
            iterate(step, *opened)
            if step == first:
                began = time.perf_counter()
            elif step == last:
                seconds = time.perf_counter() - began
                opened[0].end("measured")
    return iterations * PROMPTS / seconds


@contextlib.contextmanager
def _opened(config: Config, folder: Path) -> Iterator[tuple[Any, ...]]:
    with open_rl(config, folder / "run") as opened:
        run, sampler, policy, _, methods = opened
        answer_briefly(run, policy)
        methods.begin(run, sampler)
        yield opened


def _warmed_up(steps: Iterator[int]) -> Iterator[int]:
    for step in steps:
        Times.factor = WARM_UP[step - 1] if step <= len(WARM_UP) else 1.0
        yield step


def isolated_row(seconds: float = SECONDS) -> Row:
    """An iteration that takes nothing over and leaves nothing, beside the least that its episodes can take."""
    record, episodes = _traced((f"turns={TURNS}", f"seconds={seconds}"), **_SIZES)
    busy = record["engine_busy"] * record["rollout_seconds"]
    ideal = ideal_seconds(episodes, busy, record["decode_steps"])
    name = f"an iteration of {len(episodes)} episodes by itself, the engine busy for {busy:.2f} s of it"
    return cost_row(name, record["rollout_seconds"], ideal, "s", "ideal of its trace")


def ideal_seconds(episodes: list[Mapping[str, Any]], busy: float, steps: float) -> float:
    """The least time of an iteration: of its longest episode, and of all that the engine computes.

    Args:
        episodes: what a trace says of each: how long its tools took [s], and its tokens, each of which takes a step.
        busy: that the engine has computed [s].
        steps: passes of the engine over one new token of each sequence.
    """
    own = [each["environment"] + each["tokens"] * busy / max(1, steps) for each in episodes]
    return max(*own, busy)


def slow_tool_row(slow: float = SLOW_TOOL) -> Row:
    """The time until seven of eight episodes have ended while one waits for a slow tool."""
    sizes = _SIZES | {"prompts": 4, "samples": 2}
    _, episodes = _traced(("turns=1", "seconds=0.01"), slow, **sizes)
    *others, last = sorted(each["end"] for each in episodes)
    name = f"seven of eight episodes end beside a tool of {slow:g} s, which ends at {last:.2f} s"
    return cost_row(name, others[-1], SOON, "s", "the limit")


def _traced(
    options: tuple[str, ...], slow: float = 0.0, **rollout: Any
) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    """The record of an iteration by itself, and its episodes: what its trace says of each, and its ``end`` [s].

    Args:
        options: of the dataset.
        slow: time of one step of one environment in it; 0 is none [s].
        rollout: keys of ``rl.rollout``.
    """
    measured = len(WARM_UP) + 1
    rollout = {"sampler": "workers", "look_ahead": 1, "trace": measured, **rollout}
    config = slow_config(options=options, steps=measured, **rollout)
    with tempfile.TemporaryDirectory(prefix="k2jax-bench-") as folder:
        with _opened(config, Path(folder)) as opened:
            for step in _warmed_up(opened[0].steps()):
                if step == measured and slow:
                    Times.fixed.append(slow)
                iterate(step, *opened)
        events = json.loads((Path(folder) / "run" / f"trace-{measured}.json").read_bytes())["traceEvents"]
    episodes = [event for event in events if event["ph"] == "X" and event["pid"] == EPISODES]
    return opened[1].record(), [{**each["args"], "end": (each["ts"] + each["dur"]) / 1e6} for each in episodes]


def calls_row() -> Row:
    """The time of four calls of a tool in one answer."""
    return cost_row("four calls of 0.1 s in one answer", asyncio.run(_calls()), OVERLAP, "s", "the limit")


async def _calls() -> float:
    environment = ToolEnvironment(Services())
    message = {"role": "user", "content": "rest"}
    await environment.reset(Task("rest", "bench", (message,), "", environment="tools", tools=(TOOLS,)), 0)
    call = {"type": "function", "function": {"name": "rest", "arguments": "{}"}}
    calls = [{"id": str(number), **call} for number in range(4)]
    began = time.perf_counter()
    await environment.step({"role": "assistant", "content": "", "tool_calls": calls})
    seconds = time.perf_counter() - began
    await environment.close()
    return seconds
