"""The training state rests in the host's memory during a rollout; on a CPU it stays where it is."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.rl.sync import offload
from k2jax.train.program import Program
from tests.inference.tiny import engine as tiny_engine
from tests.parallel.tiny import config_of


def kinds(state):
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state)}


def test_on_a_cpu_nothing_moves():
    state = Program(config_of({})).init()
    assert offload.to_host(state) is state is offload.to_devices(state)
    assert not offload.has_host_memory("cpu") and offload.has_host_memory("tpu")


MESHES = [
    pytest.param({}, id="one device"),
    pytest.param(
        {"parallel.data": 4, "parallel.expert": 2}, id="mesh", marks=[pytest.mark.devices(8), pytest.mark.slow]
    ),
]


@pytest.mark.parametrize("mesh", MESHES)
def test_a_state_that_goes_to_the_host_and_back_is_the_same_and_is_never_in_both_memories(monkeypatch, mesh):
    """The CPU backend has both kinds of memory, so that the moves are real ones here too."""
    monkeypatch.setattr(offload, "has_host_memory", lambda platform: True)
    state = Program(config_of(mesh)).init()
    expected, shardings = jax.tree.map(np.array, state), jax.tree.map(lambda leaf: leaf.sharding, state)
    on_host = offload.to_host(state)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert kinds(on_host) == {"pinned_host"}
    back = offload.to_devices(on_host)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(on_host))
    assert kinds(back) == {"device"}
    assert jax.tree.map(lambda leaf: leaf.sharding, back) == shardings
    jax.tree.map(np.testing.assert_array_equal, back, expected)
    jax.tree.map(np.testing.assert_array_equal, offload.to_devices(back), expected)


def test_the_weights_of_a_frozen_role_are_on_the_devices_while_it_answers_and_on_the_host_otherwise(monkeypatch):
    monkeypatch.setattr(offload, "has_host_memory", lambda platform: True)
    engine, asked = tiny_engine(), ([[1, 2, 3]], Sampling(max_tokens=4, temperature=0.0))
    run = SimpleNamespace(
        state={"weight": jax.numpy.ones(3)},
        config=SimpleNamespace(rl=SimpleNamespace(rollout=SimpleNamespace(offload_state=True))),
    )
    (expected,) = engine.generate(*asked)
    for _ in range(2):
        with offload.offloaded(run, [engine]):
            assert (kinds(run.state), kinds(engine.weights.params)) == ({"pinned_host"}, {"device"})
            (answered,) = engine.generate(*asked)
            assert answered.tokens == expected.tokens
            engine.release(weights=False)
        assert (kinds(run.state), kinds(engine.weights.params)) == ({"device"}, {"pinned_host"})
    run.config.rl.rollout.offload_state = False
    with offload.offloaded(run, [engine]):
        assert kinds(run.state) == {"device"}
