"""The engine has exactly the weights that the trainer pushed, on any mesh, and a sync that was left out is noticed."""

import gc
import json
import math
import sys

import jax
import pytest

from k2jax.config.schema import RolloutConfig
from k2jax.errors import UserError
from k2jax.inference.checksum import bit_sum, digest, seed_of
from k2jax.inference.mesh import make_engine_mesh
from k2jax.inference.weights import named_leaves
from k2jax.rl.sync import weight_sync
from k2jax.rl.sync.weight_sync import StaleWeightsError, colocated_engine
from k2jax.train.program import Program
from tests.parallel.tiny import config_of
from tests.rl.sync.colocated import MESH, assert_holds, colocated, logical
from tests.train.together import end, free_port, python

ALONE = ({}, {})
STAGES = (MESH, {"data": 4, "expert": 2})
EIGHT = pytest.mark.devices(8)
LAYOUTS = [
    pytest.param(*ALONE, "float32", id="one device"),
    pytest.param(*ALONE, "bfloat16", id="one device, cast", marks=pytest.mark.slow),
    pytest.param(*STAGES, "bfloat16", id="stage 2 x expert 2 x data 2 to data 4 x expert 2", marks=EIGHT),
    pytest.param(
        {"parallel.data": 1, "parallel.stage": 4, "parallel.expert": 2}, {"expert": 8}, "float32",
        id="stage 4 x expert 2 to expert 8", marks=[EIGHT, pytest.mark.slow],
    ),
    pytest.param(
        {"parallel.stage": 2, "parallel.expert": 2, "parallel.context": 2, "model.heads": 8}, {"expert": 8}, "float32",
        id="stage 2 x expert 2 x context 2 to expert 8", marks=[EIGHT, pytest.mark.slow],
    ),
    pytest.param(
        {"parallel.data": 8}, {"data": 1, "expert": 2}, "float32",
        id="data 8 to two of the devices", marks=[EIGHT, pytest.mark.slow],
    ),
]  # fmt: skip


def step(state):
    """A training step that donates its state, and changes every weight."""
    change = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 1.5 + 0.1, tree), donate_argnums=0)
    return state.replace(params=change(state.params))


def one_sum(name, array):
    seed = seed_of(name) if isinstance(name, str) else seed_of(*name)
    return int(jax.jit(bit_sum)(array, seed))


@pytest.mark.parametrize(("overrides", "rollout", "dtype"), LAYOUTS)
def test_the_engine_holds_the_logical_weights_bit_for_bit_after_every_step(overrides, rollout, dtype):
    """It keeps them when the trainer donates its own; the checksum is that of the whole arrays on one device."""
    program, state, engine, sync = colocated(overrides, rollout, dtype)
    checksums = []
    for version in range(2):
        stats = sync.push(state.params, version)
        expected = logical(program, state.params, dtype)
        old, state = state, step(state)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old.params))
        assert_holds(engine, expected)
        assert (stats.version, engine.version) == (version, version)
        assert stats.bytes == sum(array.nbytes for array in expected.values())
        assert stats.checksum == digest({name: one_sum(name, array) for name, array in expected.items()})
        checksums.append(stats.checksum)
    assert len(set(checksums)) == 2


@EIGHT
def test_an_engine_whose_devices_are_in_another_order_gets_its_weights(monkeypatch):
    backwards = lambda mesh, rollout: make_engine_mesh(  # noqa: E731
        rollout.data, rollout.expert, list(mesh.devices.flat)[::-1]
    )
    monkeypatch.setattr(weight_sync, "colocated_mesh", backwards)
    program, state, engine, sync = colocated(*STAGES, "bfloat16")
    sync.push(state.params, 0)
    assert_holds(engine, logical(program, state.params, "bfloat16"))


@EIGHT
def test_an_engine_of_several_processes_is_on_all_their_devices(monkeypatch):
    program = Program(config_of({"train.batch_size": 16, "parallel.data": 2, "parallel.expert": 4}))
    monkeypatch.setattr(weight_sync.processes, "count", lambda: 2)
    with pytest.raises(UserError, match=r"data 1 x expert 2 leaves out some of the 8 devices .* rl\.rollout\.data=4"):
        colocated_engine(program, RolloutConfig(expert=2))


def bytes_of(array):
    """Of an array, or what is like one, over all devices."""
    elements = math.prod(array.sharding.shard_shape(array.shape))
    return elements * array.dtype.itemsize * len(array.sharding.device_set)


def live_bytes():
    return sum(bytes_of(array) for array in jax.live_arrays())


@pytest.mark.parametrize(
    "layout",
    [pytest.param(ALONE, id="one device"), pytest.param(STAGES, id="mesh", marks=[EIGHT, pytest.mark.slow])],
)
def test_a_push_needs_at_most_one_bucket_beside_the_weights(layout):
    """Over all devices; after the first push, which makes the engine's arrays, nothing is left behind."""
    _, state, engine, sync = colocated(*layout)
    sync.push(state.params, 0)
    sizes = [bytes_of(engine.weights.target(bucket.weight)) * len(bucket.rows) for bucket in sync.buckets]
    gc.collect()  # what earlier tests left in cycles must not be freed while this one measures
    before, seen = live_bytes(), []

    def measure(frame, event, _):
        if event == "call" and "k2jax" in frame.f_code.co_filename:
            seen.append(live_bytes())

    sys.setprofile(measure)
    try:
        sync.push(state.params, 1)
    finally:
        sys.setprofile(None)
    checksums = 1 << 14  # a few bytes for each bucket
    assert max(sizes) / 2 < max(seen) - before <= max(sizes) + checksums
    assert live_bytes() == before


class TestStale:
    """A sync that was left out, went wrong or was undone."""

    @pytest.fixture(scope="class")
    def pair(self):
        _, state, engine, sync = colocated(*ALONE)
        return state, engine, sync

    @pytest.fixture
    def synced(self, pair):
        state, engine, sync = pair
        sync.push(state.params, 4)
        return state, engine, sync

    def test_a_push_that_was_left_out_is_noticed(self, synced):
        _, _, sync = synced
        sync.check(4)
        with pytest.raises(StaleWeightsError, match=r"version 4 of the weights, .* the trainer is at version 5"):
            sync.check(5)

    def test_a_version_that_was_raised_without_weights_is_noticed(self, synced):
        _, engine, sync = synced
        engine.version = 5
        for version in (None, 4, 5):
            with pytest.raises(StaleWeightsError, match="the engine has version 5 of the weights, the last push was"):
                sync.check(version)

    def test_weights_that_somebody_else_gave_the_engine_are_noticed(self, synced):
        state, engine, sync = synced
        changed = dict(named_leaves(state.params))
        changed["head"] = changed["head"].at[299, 31].add(1e-6)
        engine.update_params(changed, 4)
        with pytest.raises(StaleWeightsError, match=r"1 of \d+ checksums differ, that of head among them"):
            sync.check(4)

    def test_a_push_that_broke_off_is_noticed(self, synced):
        state, _, sync = synced
        params = jax.tree.map(lambda leaf: leaf, state.params)
        del params["moe"]["router"]
        with pytest.raises(KeyError):
            sync.push(params, 5)
        with pytest.raises(StaleWeightsError, match="a push broke off"):
            sync.check()

    def test_what_arrives_changed_is_noticed_by_the_push_itself(self, synced, monkeypatch):
        state, _, sync = synced
        routers = {("moe/router", 0): ("moe/router", 1), ("moe/router", 1): ("moe/router", 0)}
        leaves = sync._leaves
        monkeypatch.setattr(
            sync, "_leaves", lambda *a: ((routers.get(name, name), array) for name, array in leaves(*a))
        )
        with pytest.raises(StaleWeightsError, match=r"2 of .* checksums differ"):
            sync.push(state.params, 5)

    def test_an_engine_without_a_push_is_refused(self):
        _, _, engine, sync = colocated(*ALONE)
        assert not engine.has_work()
        with pytest.raises(StaleWeightsError, match="no weights were pushed"):
            sync.check()


@EIGHT
def test_one_device_whose_copy_differs_is_noticed():
    _, state, engine, sync = colocated(*STAGES, "bfloat16")
    sync.push(state.params, 0)
    norm = engine.weights.params["final_norm"]
    copies = [shard.data for shard in norm.addressable_shards]
    copies[5] = copies[5].at[3].add(1.0)
    engine.weights.params["final_norm"] = jax.make_array_from_single_device_arrays(norm.shape, norm.sharding, copies)
    with pytest.raises(StaleWeightsError, match=r"1 of \d+ checksums differ, that of final_norm"):
        sync.check(0)


@pytest.mark.slow
def test_two_processes_have_the_checksums_of_one():
    port = free_port()
    told = end([python(["-m", "tests.rl.sync.colocated"], index, 2, port) for index in range(2)], seconds=300)
    assert [code for code, _, _ in told] == [0, 0], told
    first, second = (json.loads(stdout.splitlines()[-1]) for _, stdout, _ in told)
    _, state, _, sync = colocated(*ALONE)
    expected = [sync.push(state.params, 0).checksum]
    added = jax.tree.map(lambda x: x + 1, state.params)
    expected.append(sync.push(added, 1).checksum)
    assert first == second == {"checksums": expected, "version": 1}
