"""The engine owns its weights: whatever a caller does to the arrays that it gave, the engine goes on."""

import functools
import gc
import sys

import jax
import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.inference import programs
from k2jax.inference.engine import Engine
from k2jax.inference.mesh import make_engine_mesh
from k2jax.inference.weights import EngineWeights, named_leaves
from tests.inference.tiny import ROUTED, SIZES, layer_by_layer, oracle, prompts, weights

[PROMPT] = prompts(5)
GREEDY = Sampling(max_tokens=4, temperature=0.0)
MESH = {"data": 2, "expert": 4}
LAYOUTS = [pytest.param(False, None, id="layers apart"), pytest.param(True, None, id="layers stacked")]
ON_A_MESH = [
    pytest.param(False, MESH, id="layers apart, mesh"),
    pytest.param(True, MESH, id="layers stacked, mesh"),
    pytest.param(True, {"data": 8}, id="layers stacked, copies"),
]
SLOW_ON_A_MESH = [
    pytest.param(*one.values, id=one.id, marks=[pytest.mark.devices(8), pytest.mark.slow]) for one in ON_A_MESH
]


@functools.partial(jax.jit, donate_argnums=0)
def train_step(params):
    """A step of a trainer: it donates the old weights."""
    return jax.tree.map(lambda leaf: leaf + 1.0, params)


def donate(params):
    """Has the arrays deleted as a training step does."""
    jax.block_until_ready(train_step(params))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(params))


def owned(seed, sharding=None):
    """Weights of ``tiny.weights`` in buffers of their own."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf.copy(), sharding), weights(ROUTED, seed))


def aligned(seed):
    """The same as NumPy arrays at addresses that a CPU backend reads in place."""

    def array(leaf):
        room = np.zeros(leaf.nbytes + 128, np.uint8)
        start = -room.ctypes.data % 128
        whole = room[start : start + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)
        whole[...] = leaf
        return whole

    return jax.tree.map(array, weights(ROUTED, seed))


def overwrite(params):
    for leaf in jax.tree.leaves(params):
        leaf[...] = np.nan


def hold(params, stacked, axes):
    return EngineWeights(params, ROUTED, make_engine_mesh(**axes) if axes else None, stacked)


def assert_holds(held, seed, stacked):
    expected, found = dict(layer_by_layer(weights(ROUTED, seed))), dict(held.leaves())
    assert isinstance(held.params["moe"], dict if stacked else list) and found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name])


def buffers(params):
    return {shard.data.unsafe_buffer_pointer() for leaf in jax.tree.leaves(params) for shard in leaf.addressable_shards}


def decode(engine, seed):
    """Tokens and log-probabilities, checked against one pass over all of them with the weights of ``seed``."""
    [request] = engine.generate([PROMPT], GREEDY)
    expected = oracle(ROUTED, request.ids, seed=seed)[np.arange(4, 8), list(request.tokens)]
    np.testing.assert_allclose(request.logprobs, expected, atol=1e-4)
    return list(request.tokens), list(request.logprobs)


@pytest.mark.parametrize(("stacked", "axes"), LAYOUTS + SLOW_ON_A_MESH)
def test_an_engine_outlives_the_arrays_that_it_was_given(stacked, axes, monkeypatch):
    """Donated by a training step, or overwritten on the host; updated from them whole and layer by layer."""
    monkeypatch.setattr(programs, "EngineWeights", functools.partial(EngineWeights, stacked=stacked))
    params = owned(0)
    mesh, slots = (make_engine_mesh(**axes), 8) if axes else (None, SIZES["slots"])
    engine = Engine(ROUTED, params, slots=slots, max_length=SIZES["max_length"], mesh=mesh)
    before = decode(engine, 0)
    donate(params)
    assert decode(engine, 0) == before
    for version, form in enumerate((named_leaves, layer_by_layer), 1):
        params = owned(version)
        engine.update_params(form(params), version)
        updated = decode(engine, version)
        donate(params)
        assert decode(engine, version) == updated != before
    for version, form in enumerate((named_leaves, layer_by_layer), 3):
        params = aligned(version)
        engine.update_params(form(params), version)
        overwrite(params)
        decode(engine, version)


def check_copies(stacked, axes):
    """NumPy arrays are put on the devices once, and arrays that lie in their places already are copied."""
    params = aligned(0)
    held = hold(params, stacked, axes)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(held.params))
    overwrite(params)
    assert_holds(held, 0, stacked)
    params = hold(weights(ROUTED), True, axes).params
    held = hold(params, stacked, axes)
    assert not buffers(params) & buffers(held.params)
    donate(params)
    assert_holds(held, 0, stacked)


@pytest.mark.parametrize(("stacked", "axes"), LAYOUTS)
def test_arrays_of_a_caller_are_copied_once(stacked, axes):
    check_copies(stacked, axes)


def test_arrays_of_numpy_that_are_given_away_are_not_copied():
    params = aligned(1)
    held = hold(weights(ROUTED), False, None)
    held.update(held.check(named_leaves(params)), donate=True)
    assert held.params["embed"].unsafe_buffer_pointer() == params["embed"].ctypes.data
    assert_holds(held, 1, False)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_generator_may_fill_one_buffer_again_and_again(stacked):
    new = [(name, np.asarray(leaf)) for name, leaf in layer_by_layer(weights(ROUTED, 1))]
    buffer = np.zeros(max(array.size for _, array in new) + 32, np.float32)
    buffer = buffer[-(buffer.ctypes.data // 4) % 32 :]

    def streamed():
        for name, array in new:
            part = buffer[: array.size].reshape(array.shape)
            part[...] = array
            yield name, part
            buffer[...] = np.nan

    held = hold(weights(ROUTED), stacked, None)
    held.update(held.check(streamed()))
    assert_holds(held, 1, stacked)


def peak_bytes(act):
    """Most bytes of live arrays at calls and returns of ``EngineWeights`` during ``act``, over those before it."""
    seen = []

    def measure(frame, event, _):
        if event in ("call", "return") and frame.f_code.co_filename.endswith("inference/weights.py"):
            seen.append(sum(array.nbytes for array in jax.live_arrays()))

    gc.collect()  # what earlier tests left in cycles must not be freed while this one measures
    before = sum(array.nbytes for array in jax.live_arrays())
    sys.setprofile(measure)
    try:
        kept = act()
    finally:
        sys.setprofile(None)
    del kept
    return max(seen) - before


@pytest.mark.parametrize(("stacked", "dtype"), [(False, np.float32), (True, np.float16)])
def test_a_start_needs_the_copy_and_at_most_one_more_array(stacked, dtype):
    params = owned(0) | {"embed": owned(0)["embed"].astype(dtype)}
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(hold(params, stacked, None).params))
    largest = max(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert total <= peak_bytes(lambda: hold(params, stacked, None)) <= total + largest


def test_arrays_that_are_given_away_go_one_by_one():
    params = owned(0)
    largest = max(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert peak_bytes(lambda: EngineWeights(params, ROUTED, None, donate=True)) <= 2 * largest
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(params))
