"""The engine on a mesh of 8 emulated devices gives what one device gives."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.inference.engine import Engine
from k2jax.inference.mesh import make_engine_mesh
from k2jax.inference.weights import named_leaves
from tests.inference.mesh import GREEDY, PROMPTS, ids_of, largest_error, mesh_engine
from tests.inference.tiny import GQA, MLA, oracle, weights
from tests.train.together import end, free_port, python


@pytest.mark.devices(8)
@pytest.mark.parametrize(
    ("model", "axes", "experts"),
    [
        pytest.param(MLA, {"data": 2, "expert": 4}, 2, id="data 2 x expert 4"),
        pytest.param(MLA, {"expert": 8}, 1, id="expert 8", marks=pytest.mark.slow),
        pytest.param(GQA, {"data": 8}, None, id="data 8, grouped-query attention", marks=pytest.mark.slow),
    ],
)
def test_every_position_equals_one_pass_on_one_device(model, axes, experts):
    """Prompts of many lengths, greedy, all positions; then samples of one prompt, twice, with few pages."""
    engine = mesh_engine(model, make_engine_mesh(**axes), pages=8 * 6)
    assert {shard.data.shape[1] for shard in engine._programs._cache.addressable_shards} == {
        6 + 1
    }  # with the scratch page
    if experts:
        w13 = engine._weights.params["moe"][0]["experts"]["w13"]
        assert {shard.data.shape[0] for shard in w13.addressable_shards} == {experts}  # on each device
    greedy = engine.generate(PROMPTS, GREEDY)
    assert sum(len(request.ids) - 1 for request in greedy) > 200
    assert largest_error(model, greedy) <= 1e-4
    sampling = [Sampling(max_tokens=20, temperature=0.8, seed=i) for i in range(24)]
    first, second = (engine.generate([PROMPTS[2]] * 24, sampling) for _ in range(2))
    assert ids_of(first) == ids_of(second)
    assert largest_error(model, first + second, 0.8) <= 1e-4
    assert min(request.cached_tokens for request in second) >= 32  # the pages are on the device that computed them
    assert engine.stats().pages_in_use == 0


@pytest.mark.devices(8)
def test_alternatives_of_prompts_on_a_mesh_are_the_best_of_one_pass_on_one_device():
    asked = [dataclasses.replace(GREEDY, max_tokens=1, top_logprobs=top) for top in (5, 0, 1)]
    engine = mesh_engine(MLA, make_engine_mesh(data=2, expert=4))
    for request in engine.generate(PROMPTS[2:5], asked):
        wanted = request.sampling.top_logprobs
        assert len(request.prompt_top_logprobs) == (len(request.prompt) - 1 if wanted else 0)
        for row, top in zip(oracle(MLA, request.ids), request.prompt_top_logprobs, strict=False):
            assert len(top) == wanted
            np.testing.assert_allclose([p for _, p in top], np.sort(row)[::-1][:wanted], atol=1e-4)
            np.testing.assert_allclose([row[token] for token, _ in top], [p for _, p in top], atol=1e-4)


@pytest.mark.slow
@pytest.mark.devices(8)
def test_tokens_drawn_with_top_p_are_those_of_one_device():
    sampling = [Sampling(max_tokens=20, temperature=0.8, top_p=0.9, seed=i) for i in range(32)]
    asked = [PROMPTS[i % len(PROMPTS)] for i in range(32)]
    meshes = None, make_engine_mesh(data=2, expert=4)
    alone, together = (ids_of(mesh_engine(MLA, mesh).generate(asked, sampling)) for mesh in meshes)
    assert alone == together


@pytest.mark.slow
@pytest.mark.devices(8)
def test_weights_change_on_the_mesh_while_requests_run():
    engine = mesh_engine(MLA, make_engine_mesh(expert=8))
    requests = [engine.submit(prompt, Sampling(max_tokens=20, temperature=0.0)) for prompt in PROMPTS[:6]]
    for _ in range(4):
        engine.step()
    engine.update_params(named_leaves(weights(MLA, 1)), 1)
    while engine.has_work():
        engine.step()
    assert {version for request in requests for version in request.versions} == {0, 1}
    assert largest_error(MLA, requests, seeds=(0, 1)) <= 1e-4


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
        make_engine_mesh(data=2, expert=4)
    two = jax.sharding.AbstractMesh((2, 1), ("data", "expert"))
    with pytest.raises(UserError, match="slots 5 do not divide over 2 devices; 6 would"):
        Engine(MLA, weights(MLA), slots=5, mesh=two)
    with pytest.raises(UserError, match=r"pages for one sequence of max_length .* on each of 2 devices"):
        Engine(MLA, weights(MLA), slots=4, pages=8, max_length=128, mesh=two)
