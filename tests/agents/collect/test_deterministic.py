"""Three collections give the same batches bit for bit: more workers, more engines, paused episodes, a killed worker."""

import asyncio

import pytest

from k2jax.agents.collect.simulated import SimulatedEngine, Simulation
from k2jax.agents.task import Budget, Task
from k2jax.trajectory.encoding import encode
from tests.agents.collect.engines import BYTES, collected

SIMULATION = Simulation(answer=0.1, tool=0.05)
OPTIONS = {
    "sampling": {"kind": {"max_tokens": 300}},
    "added": [("toolset", "simulated", "k2jax.agents.collect.simulated:SimulatedTools")],
}


def task(number: int) -> Task:
    instruction = ({"role": "user", "content": f"Look at {number}."},)
    tools = (f"simulated seconds={SIMULATION.tool}",)
    return Task(str(number), "simulated", instruction, "", environment="tools", tools=tools, budget=Budget(steps=12))


def batch(folder, *, engines=1, kill=0, token_cap=0, **manager) -> list[bytes]:
    """All groups in the order of keys, as the bytes of their trajectories."""
    clients = [SimulatedEngine(BYTES, SIMULATION) for _ in range(engines)]
    options = OPTIONS | {"token_cap": token_cap}
    stored, _ = asyncio.run(
        collected(folder, list(map(task, range(12))), clients, 3, kill=kill, manager=manager, **options)
    )
    assert all(client.max_running for client in clients)
    return [encode(each) for each in stored]


def test_three_collections_give_the_same_batch_bit_for_bit(tmp_path):
    first = batch(tmp_path / "a")
    assert len(set(first)) == len(first)
    assert batch(tmp_path / "b", workers=2, engines=2, kill=9) == first
    assert batch(tmp_path / "c", engines=2) == first


@pytest.mark.slow
def test_an_episode_that_pauses_again_and_again_has_the_same_messages(tmp_path):
    """A paused answer is cut and resumed: the simulated engine draws it again, and its resumed tokens are the same."""
    assert batch(tmp_path / "paused", token_cap=150) == batch(tmp_path / "whole")
