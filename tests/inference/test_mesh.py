"""The engine on a mesh of 8 emulated devices gives what one device gives."""

import dataclasses
import json

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.inference import shapes
from k2jax.inference.checksum import combine, replica_sums, seed_of
from k2jax.inference.engine import Engine
from k2jax.inference.mesh import make_engine_mesh
from k2jax.inference.weights import named_leaves
from tests.inference.mesh import GREEDY, PROMPTS, largest_error, mesh_engine
from tests.inference.test_checksum import DTYPES, SHAPE, values
from tests.inference.test_checksum import oracle as checksum
from tests.inference.test_loading import check_loaded
from tests.inference.test_ownership import MESH, ON_A_MESH, check_copies
from tests.inference.tiny import GQA, SHORT, check_alternatives, finish, ids_of, oracle, weights
from tests.serve.folder import write
from tests.train.together import end, free_port, python


@pytest.mark.devices(8)
@pytest.mark.parametrize(
    ("model", "axes", "experts"),
    [
        pytest.param(SHORT, MESH, 2, id="data 2 x expert 4"),
        pytest.param(SHORT, {"expert": 8}, 1, id="expert 8", marks=pytest.mark.slow),
        pytest.param(GQA, {"data": 8}, None, id="data 8, grouped-query attention", marks=pytest.mark.slow),
    ],
)
def test_every_position_equals_one_pass_on_one_device(model, axes, experts, monkeypatch):
    """Prompts of many lengths, greedy, all positions; then samples of one prompt, twice, with few pages."""
    monkeypatch.setattr(shapes, "PREFILL_WIDTHS", (16,))
    engine = mesh_engine(model, make_engine_mesh(**axes), pages=8 * 6)
    assert {shard.data.shape[1] for shard in engine.programs._cache.addressable_shards} == {
        6 + 1
    }  # with the scratch page
    if experts:
        w13 = engine._weights.params["moe"][0]["experts"]["w13"]
        assert {shard.data.shape[0] for shard in w13.addressable_shards} == {experts}  # on each device
    asked = [dataclasses.replace(GREEDY, top_logprobs=(0, 5, 1)[i % 3]) for i in range(len(PROMPTS))]
    greedy = engine.generate(PROMPTS, asked)
    for request in greedy:
        wanted = request.sampling.top_logprobs
        assert len(request.prompt_top_logprobs) == (len(request.prompt) - 1 if wanted else 0)
        for row, top in zip(oracle(model, request.ids), request.prompt_top_logprobs, strict=False):
            check_alternatives(row, top, wanted)
    assert sum(len(request.ids) - 1 for request in greedy) > 200
    assert largest_error(model, greedy) <= 1e-4
    sampling = [Sampling(max_tokens=20, temperature=0.8, seed=i) for i in range(24)]
    first, second = (engine.generate([PROMPTS[2]] * 24, sampling) for _ in range(2))
    assert ids_of(first) == ids_of(second)
    assert largest_error(model, first + second, 0.8) <= 1e-4
    assert min(request.cached_tokens for request in second) >= 32  # the pages are on the device that computed them
    assert engine.stats().pages_in_use == 0


@pytest.mark.slow
@pytest.mark.devices(8)
def test_tokens_drawn_with_top_p_are_those_of_one_device():
    sampling = [Sampling(max_tokens=20, temperature=0.8, top_p=0.9, seed=i) for i in range(32)]
    asked = [PROMPTS[i % len(PROMPTS)] for i in range(32)]
    meshes = None, make_engine_mesh(**MESH)
    alone, together = (ids_of(mesh_engine(SHORT, mesh).generate(asked, sampling)) for mesh in meshes)
    assert alone == together


@pytest.mark.slow
@pytest.mark.devices(8)
def test_weights_change_on_the_mesh_while_requests_run():
    engine = mesh_engine(SHORT, make_engine_mesh(expert=8))
    requests = [engine.submit(prompt, Sampling(max_tokens=20, temperature=0.0)) for prompt in PROMPTS[:6]]
    for _ in range(4):
        engine.step()
    engine.update_params(named_leaves(weights(SHORT, 1)), 1)
    finish(engine)
    assert {version for request in requests for version in request.versions} == {0, 1}
    assert largest_error(SHORT, requests, seeds=(0, 1)) <= 1e-4


@pytest.mark.devices(8)
@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("spec", [(), ("expert",), (None, "data"), ("expert", "data"), (("data", "expert"),)], ids=str)
def test_sharded_arrays_have_the_checksum_of_the_whole(spec, dtype):
    mesh = make_engine_mesh(**MESH)
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    array = values(dtype)
    sums = np.asarray(replica_sums(jax.device_put(array, sharding), seed_of("w")))
    assert combine(sums, sharding) == [frozenset({checksum(array)})]
    stacked = NamedSharding(mesh, PartitionSpec(None, *spec))
    layers, seeds = values(dtype, 1, (2, *SHAPE)), np.array([seed_of("w", 0), seed_of("w", 1)])
    sums = np.asarray(replica_sums(jax.device_put(layers, stacked), seeds))
    assert combine(sums, stacked) == [frozenset({checksum(layers[row], row=row)}) for row in range(2)]


@pytest.mark.devices(8)
def test_copies_that_differ_have_a_checksum_each():
    mesh = make_engine_mesh(**MESH)
    sharding = NamedSharding(mesh, PartitionSpec("expert"))
    whole, other = values(np.float32), values(np.float32)
    other[0, 0, 0] += 1
    pieces = [
        jax.device_put((other if number == 4 else whole)[index], device)
        for number, (device, index) in enumerate(sharding.devices_indices_map(SHAPE).items())
    ]
    array = jax.make_array_from_single_device_arrays(SHAPE, sharding, pieces)
    [found] = combine(np.asarray(replica_sums(array, seed_of("w"))), sharding)
    assert found == {checksum(whole), checksum(other)}


@pytest.mark.devices(8)
@pytest.mark.parametrize(("stacked", "axes"), ON_A_MESH)
def test_arrays_of_a_caller_are_copied_once(stacked, axes):
    check_copies(stacked, axes)


@pytest.mark.devices(8)
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_an_engine_reads_the_weights_that_from_pretrained_gives(tmp_path, dtype):
    check_loaded(write(tmp_path), dtype, make_engine_mesh(data=8))


@pytest.mark.slow
def test_two_processes_give_the_same_tokens():
    port = free_port()
    told = end([python(["-m", "tests.inference.mesh"], index, 2, port) for index in range(2)], seconds=600)
    assert [code for code, _, _ in told] == [0, 0], told
    first, second = (json.loads(stdout.splitlines()[-1]) for _, stdout, _ in told)
    assert first == second
    assert first["error"] <= 1e-4


def test_what_does_not_divide_is_refused():
    with pytest.raises(UserError, match="data 2 x expert 4 devices: there are 1"):
        make_engine_mesh(**MESH)
    two = jax.sharding.AbstractMesh((2, 1), ("data", "expert"))
    with pytest.raises(UserError, match="slots 5 do not divide over 2 devices; 6 would"):
        Engine(SHORT, weights(SHORT), slots=5, mesh=two)
    with pytest.raises(UserError, match=r"pages for one sequence of max_length .* on each of 2 devices"):
        Engine(SHORT, weights(SHORT), slots=4, pages=8, max_length=128, mesh=two)
