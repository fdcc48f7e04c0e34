"""The benchmarks of reinforcement learning that does not wait, small: what they measure is what they say."""

import asyncio
import os
import subprocess
import time
from types import SimpleNamespace

import pytest

from k2jax.agents.collect.simulated import Simulation
from k2jax.bench import asynchronous as bench
from k2jax.bench import asynchronous_scale as scale
from k2jax.bench.simulated_client import SimulatedContinuous
from k2jax.bench.slow_turns import register
from k2jax.client import Sampling
from k2jax.text.tokenizer import byte_tokenizer


def test_the_ideal_of_a_trace_is_its_longest_episode_or_all_that_the_engine_computes():
    episodes = [{"environment": 2.0, "tokens": 10}, {"environment": 1.0, "tokens": 200}]
    assert bench.ideal_seconds(episodes, busy=1.0, steps=100) == pytest.approx(1.0 + 200 * 0.01)
    assert bench.ideal_seconds(episodes, busy=9.0, steps=100000) == 9.0


def test_calls_of_one_answer_take_the_time_of_one():
    register()
    row = bench.calls_row()
    assert 0.1 <= row.ours < 0.4 and row.baseline == bench.OVERLAP


def simulated(answer):
    engine = SimpleNamespace(version=3, stats=lambda: SimpleNamespace(slots=8))
    return SimulatedContinuous(engine, byte_tokenizer(), Simulation(answer=answer))


def test_the_time_of_a_simulated_engine_stands_still_while_it_is_held():
    client, prompt = simulated(0.4), byte_tokenizer().encode("a")

    async def run():
        asking = asyncio.ensure_future(client.generate(prompt, Sampling(max_tokens=9, seed=1)))
        await asyncio.sleep(0.02)
        began = time.monotonic()
        assert client.running == 1 and client.stats().running == 1
        await asyncio.sleep(0.2)
        assert not asking.done() and client.busy_seconds == 0
        with client.generating():
            await asyncio.sleep(0.01)
        assert 0.01 <= client.busy_seconds < time.monotonic() - began
        with client.generating():
            completion = await asking
        assert time.monotonic() - began > 0.25
        return completion

    completion = asyncio.run(run())
    assert set(completion.versions) == {3} and client.stats().tokens_generated == len(completion.tokens) == 9


def test_a_request_that_is_cancelled_holds_no_other_up():
    client = simulated(0.02)

    async def run():
        with client.generating():
            asking = [asyncio.ensure_future(client.generate([65], Sampling(max_tokens=4, seed=i))) for i in range(4)]
            await asyncio.sleep(0)
            asking[1].cancel()
            await asyncio.wait(asking)
        return [each.cancelled() for each in asking]

    assert asyncio.run(run()) == [False, True, False, False] and client.running == 0


def test_memory_is_of_a_process_and_of_all_that_it_has_started():
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True) as child:
        deadline = time.monotonic() + 30
        while len(processes := scale._descendants(os.getpid())) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert processes[0] == os.getpid() and child.pid in processes
        os.killpg(child.pid, 9)


@pytest.mark.slow
def test_both_samplers_and_an_iteration_by_itself_are_measured(monkeypatch):
    for name, value in {"WARM_UP": (0.0,), "PROMPTS": 2, "TURNS": 2}.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(bench, "_SIZES", {"prompts": 2, "samples": 2, "slots": 4, "max_length": 128})
    register()
    row = bench.throughput_row(1, seconds=0.05)
    assert row.ratio == pytest.approx(row.ours / row.baseline) and row.ours > 0
    alone = bench.isolated_row(seconds=0.05)
    assert 0 < alone.baseline <= alone.ours and "4 episodes" in alone.name
    monkeypatch.setattr(bench, "_SIZES", {"slots": 8, "max_length": 128})
    seven = bench.slow_tool_row(slow=1.0)
    ended = float(seven.name.split()[-2])
    assert 0 < seven.ours < ended and ended > 1.0


@pytest.mark.slow
def test_the_real_loop_trains_around_simulated_episodes():
    result = scale.run_scale(episodes=32, iterations=2, prompts=2, answer=0.2)
    assert result.trained == 32 and 16 <= result.running <= 32 and result.requests > 8
    assert 0 <= result.lag.p50 <= result.lag.p99 <= result.lag.maximum and result.seconds > 0
