"""The trace of one iteration: events that Perfetto reads, of phases, episodes and the engine."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from k2jax.agents.collect.event_loop import LagProbe
from k2jax.agents.episode_key import EpisodeKey
from k2jax.rl.workers import tracing
from k2jax.rl.workers.tracing import EPISODES, PHASES, IterationTrace
from k2jax.rl.workers.window_metrics import lag_record

KEYS = {
    "X": {"name", "pid", "tid", "ts", "dur"},
    "C": {"name", "pid", "tid", "ts", "args"},
    "M": {"name", "pid", "args"},
}


class Client:
    busy_seconds = 0.0

    def stats(self):
        self.busy_seconds += 0.005
        return SimpleNamespace(running=2, waiting=1)


async def episode(trace, sample, seconds, **shown):
    with trace.episode(EpisodeKey("train", 2, 0, sample)) as details:
        await asyncio.sleep(seconds)
        details |= shown


async def iteration(trace, step):
    await trace.begin(step)
    with trace.phase("generate"):
        await asyncio.gather(episode(trace, 1, 0.03, environment=0.01), episode(trace, 2, 0.02, environment=0.02))
    with trace.phase("train"):
        await asyncio.sleep(0.01)
    await trace.end(step)


def events_of(path):
    events = json.loads(path.read_text())["traceEvents"]
    for event in events:
        assert event.keys() >= KEYS[event["ph"]]
        assert event["ph"] == "M" or event["ts"] >= 0
    return events


def test_one_iteration_is_written_with_its_phases_its_episodes_and_the_engine(tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "INTERVAL", 0.005)

    async def run():
        trace = IterationTrace(2, tmp_path, Client())
        carried = asyncio.ensure_future(episode(trace, 0, 60.0))
        for step in (1, 2, 3):
            await iteration(trace, step)
        carried.cancel()

    asyncio.run(run())
    assert [path.name for path in tmp_path.iterdir()] == ["trace-2.json"]
    events = events_of(tmp_path / "trace-2.json")
    assert {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"} == {
        PHASES: "iteration",
        EPISODES: "episodes",
    }
    spans = [event for event in events if event["ph"] == "X"]
    generate, train = (event for event in spans if event["pid"] == PHASES)
    assert (generate["name"], train["name"]) == ("generate", "train")
    assert generate["dur"] >= 30_000 and train["ts"] >= generate["ts"] + generate["dur"]
    episodes = {event["args"]["key"][-1]: event for event in spans if event["pid"] == EPISODES}
    assert set(episodes) == {0, 1, 2} and len({event["tid"] for event in episodes.values()}) == 3
    assert episodes[0]["args"]["status"] == "under way" and episodes[0]["ts"] < 5_000
    assert episodes[0]["args"]["seconds"] * 1e6 > episodes[0]["dur"], "it began in the iteration before"
    assert episodes[2]["args"]["environment"] == 0.02 and episodes[2]["args"]["purpose"] == "train"
    engine = [event["args"] for event in events if event["ph"] == "C"]
    assert engine and all(0 <= each["busy"] <= 1 and each["running"] == 2 for each in engine)


def test_without_a_trace_nothing_is_written_and_nothing_is_kept(tmp_path):
    async def run():
        trace = IterationTrace(0, tmp_path, Client())
        for step in (1, 2):
            await iteration(trace, step)
        assert not trace._running

    asyncio.run(run())
    assert not list(tmp_path.iterdir())


def test_an_episode_that_fails_ends_its_row(tmp_path):
    async def fails(trace):
        with trace.episode(EpisodeKey("train", 1, 0, 0)):
            raise RuntimeError("the engine has failed")

    async def run():
        trace = IterationTrace(1, tmp_path, Client())
        await trace.begin(1)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                await fails(trace)
        await trace.end(1)

    asyncio.run(run())
    assert [event["tid"] for event in events_of(tmp_path / "trace-1.json") if event["ph"] == "X"] == [0, 0]


def test_each_iteration_has_the_lag_since_the_last_one():
    async def run():
        async with LagProbe() as probe:
            began = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() < began + 0.2:
                pass
            await asyncio.sleep(0.03)
            return lag_record(probe.lap()), await asyncio.sleep(0.05), probe.lap()

    first, _, second = asyncio.run(run())
    assert first["lag_p99"] > 0.1 and second.p50 < 0.1
