"""Pauses between two generations: measured, and said once where an agent of the run waits less."""

import time
from types import SimpleNamespace

import pytest

from k2jax.agents.collect.pauses import AgentPatience, Pauses, least_patience
from k2jax.config import task
from tests.agents.gateway.repository import small_agent, write_agent
from tests.rl.tiny import tiny


@pytest.fixture
def of(tmp_path):
    """A config whose classes have agents of these patiences."""

    def make(**patiences):
        agents = {kind: write_agent(tmp_path / kind, small_agent(patience=p)) for kind, p in patiences.items()}
        for path in agents.values():
            path.rename(path.with_suffix(".json"))
        config = tiny()
        config.rl.tasks.update({kind: task(scaffold=f"black_box agent={path}.json") for kind, path in agents.items()})
        return config

    return make


def test_the_least_patient_agent_of_a_run_counts_and_those_that_stream_do_not(of):
    assert least_patience(of()) is None and least_patience(of(a=0)) is None
    assert least_patience(of(a=600.0, b=0, c=60)) == AgentPatience(60, "c")


def test_the_longest_pause_of_an_iteration_is_measured_and_a_line_is_said_once(monkeypatch):
    clock, said = SimpleNamespace(now=100.0), []
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    pauses = Pauses(AgentPatience(60, "files"), said.append)
    longest = []
    for pause in (10.0, 70.0, 20.0, 90.0):
        with pauses.generation():
            longest.append(pauses.longest())
            clock.now += 1000.0  # the time of a generation is none of a pause
        clock.now += pause
    with pauses.generation():
        longest.append(pauses.longest())
    assert longest == [0.0, 10.0, 70.0, 20.0, 90.0] and pauses.longest() == 0.0
    assert len(said) == 1 and "a pause of 70 s" in said[0] and "config.rl.tasks.files waits" in said[0]
