"""Three collections give the same batches bit for bit: more workers, more engines, paused episodes, a killed worker."""

import asyncio
import contextlib
import os
import signal

import pytest

from k2jax.agents.collect.engine_server import EngineServer
from k2jax.agents.collect.journal import stored_trajectory
from k2jax.agents.collect.manager import RolloutManager
from k2jax.agents.collect.queue_file import queued_samples, write_tasks
from k2jax.agents.collect.simulated import SimulatedEngine, Simulation
from k2jax.agents.task import Budget, Task
from k2jax.text.tokenizer import byte_tokenizer
from k2jax.trajectory import verify
from k2jax.trajectory.encoding import encode

TASKS, SAMPLES = 12, 3
SIMULATION = Simulation(answer=0.1, tool=0.05)
TOKENIZER = byte_tokenizer()


def task(number: int) -> Task:
    instruction = ({"role": "user", "content": f"Look at {number}."},)
    tools = (f"simulated seconds={SIMULATION.tool}",)
    return Task(str(number), "simulated", instruction, "", environment="tools", tools=tools, budget=Budget(steps=12))


@contextlib.asynccontextmanager
async def served(paths):
    """An engine behind each socket."""
    servers = [EngineServer(SimulatedEngine(TOKENIZER, SIMULATION)) for _ in paths]
    serving = [asyncio.ensure_future(server.serve(path)) for server, path in zip(servers, paths, strict=True)]
    try:
        yield servers
    finally:
        for each in serving:
            each.cancel()


async def batch(folder, *, workers, engines, token_cap=0, kill=0, launcher=None) -> list[bytes]:
    """All groups in the order of keys, as the bytes of their trajectories."""
    folder.mkdir()
    TOKENIZER.save(folder / "tokenizer")
    write_tasks(folder, [("simulated", task(number)) for number in range(TASKS)])
    sockets = [str(folder / f"engine{number}") for number in range(engines)]
    options = {
        "tokenizer": str(folder / "tokenizer"),
        "chat": "compact",
        "seed": 7,
        "sampling": {"simulated": {"max_tokens": 300}},
        "engines": sockets,
        "token_cap": token_cap,
        "added": [("toolset", "simulated", "k2jax.agents.collect.simulated:SimulatedTools")],
    }
    runner = "k2jax.agents.collect.episodes:EpisodeRunner"
    tasks = list(queued_samples(folder, SAMPLES))
    ended = []
    async with (
        served(sockets) as servers,
        RolloutManager(
            folder, runner=runner, options=options, workers=workers, capacity=20, launcher=launcher
        ) as manager,
    ):
        async for emission in manager.collect(tasks):
            ended.append(emission)
            if len(ended) == kill:
                os.kill(manager.worker_processes()[0], signal.SIGKILL)
    assert all(server.requests for server in servers)
    stored = [stored_trajectory(folder, emission.place) for emission in sorted(ended, key=lambda each: each.key)]
    assert not any(verify(each) for each in stored)
    assert [each.key for each in stored] == [
        (0, prompt, sample) for prompt in range(TASKS) for sample in range(SAMPLES)
    ]
    return [encode(each) for each in stored]


def test_three_collections_give_the_same_batch_bit_for_bit(tmp_path):
    first = asyncio.run(batch(tmp_path / "a", workers=1, engines=1))
    assert len(set(first)) == len(first)
    assert asyncio.run(batch(tmp_path / "b", workers=2, engines=2, kill=9)) == first
    assert asyncio.run(batch(tmp_path / "c", workers=1, engines=2)) == first


@pytest.mark.slow
def test_an_episode_that_pauses_again_and_again_has_the_same_messages(tmp_path):
    """A paused answer is cut and resumed: the simulated engine draws it again, and its resumed tokens are the same."""
    whole = asyncio.run(batch(tmp_path / "whole", workers=1, engines=1))
    assert asyncio.run(batch(tmp_path / "paused", workers=1, engines=1, token_cap=150)) == whole
