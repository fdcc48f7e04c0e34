"""A compiled training program as a whole: its memory adds up, its time is the fixed arithmetic, its table says it."""

import json
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from k2jax.aot.cost.expert_rows import mean_owners
from k2jax.aot.cost.hbm import Hbm, LoopBuffers, hbm, loop_buffers, shard_bytes
from k2jax.aot.report import tables
from k2jax.aot.training import analyse, branch_shares
from k2jax.config import model_preset, replace_keys
from k2jax.config.schema import Config, TrainConfig
from tests.aot.programs import HEAD, HIDDEN, LAYERS, TICKS, TOKENS, TOPOLOGY, WIDTH, program

CONFIG = Config(train=TrainConfig(batch_size=8))


@pytest.fixture(scope="module")
def found():
    return analyse(program(), CONFIG, TOPOLOGY)


def test_memory_by_kind_adds_up_to_the_compilers(found):
    compiled = program().traced.lower(lowering_platforms=("tpu",)).compile()
    taken = compiled.memory_analysis()
    weights = 4 * (2 * LAYERS * WIDTH * HIDDEN // 2 + WIDTH * HEAD)
    parts = found.hbm.parts
    assert parts["parameters"] == parts["optimizer state"] == weights
    assert parts["batch"] == 2 * TOKENS * WIDTH
    assert parts["gradients"] == 4 * LAYERS * WIDTH * HIDDEN
    assert parts["compute copy"] == 2 * (2 * LAYERS * WIDTH * HIDDEN + WIDTH * HEAD)
    assert parts["activations"] == 2 * TOKENS * WIDTH + 4
    arguments = taken.argument_size_in_bytes + taken.output_size_in_bytes - taken.alias_size_in_bytes
    assert found.hbm.total == pytest.approx(arguments + taken.temp_size_in_bytes, rel=0.05)
    assert found.hbm.fits and found.hbm.limit == 16e9
    assert found.hbm.empty == program().empty


def test_memory_that_is_not_there_does_not_fit():
    assert not Hbm({"parameters": 8.0, "activations": 3.0}, 10.0).fits
    assert Hbm({"parameters": 8.0, "activations": 2.0}, 10.0).fits


def test_time_is_the_fixed_arithmetic(found):
    flops = TICKS * (LAYERS * 4 + 2) * TOKENS * WIDTH * HIDDEN
    branch = TICKS * 2 * TOKENS * WIDTH * HEAD  # without a schedule every tick takes it
    assert found.counts.flops == pytest.approx(flops + branch, rel=1e-3)
    assert found.compiled_flops == pytest.approx(flops + branch, rel=1e-3)
    assert found.roofline.compute == pytest.approx((flops + branch) / (0.7 * 197e12), rel=1e-3)
    state = 2 * 4 * (LAYERS * WIDTH * HIDDEN + WIDTH * HEAD)
    assert found.roofline.optimizer == pytest.approx(2.5 * state / (0.8 * 0.819e12), rel=0.05)
    assert found.roofline.network == pytest.approx(sum(row.seconds for row in found.collectives))
    assert found.roofline.exposed == pytest.approx(sum(row.exposed for row in found.collectives))
    (exchange,) = [row for row in found.collectives if row.kind == "all-to-all"]
    # Two neighbours: half of the rows over one link.
    seconds = TICKS * LAYERS * (2 * TOKENS * HIDDEN / 2) / (0.8 * 50e9)
    assert exchange.seconds == exchange.exposed == pytest.approx(seconds)
    assert found.collectives == sorted(found.collectives, key=lambda row: -row.seconds)


def test_the_table_names_every_term(found):
    text = tables.training_table(found, [])
    for wanted in ("data 2 x stage 2 x expert 2", "optimizer state", "all-to-all", "data+expert", "not hidden", "MFU"):
        assert wanted in text
    assert "an estimate" in text and "in all: fits" in text
    encoded = json.loads(json.dumps(tables.as_json(found)))
    assert encoded["hbm"]["total"] == pytest.approx(found.hbm.total)
    assert encoded["roofline"]["mfu"] == pytest.approx(found.roofline.mfu())


def test_shards_of_a_tree():
    assert shard_bytes(program().state.params) == 4 * (2 * LAYERS * WIDTH * HIDDEN // 2 + WIDTH * HEAD)
    assert loop_buffers(jax.make_jaxpr(lambda x: x + 1)(1.0).jaxpr) == (0, 0, 0)
    taken = SimpleNamespace(
        temp_size_in_bytes=50, argument_size_in_bytes=10**8, output_size_in_bytes=30, alias_size_in_bytes=20
    )
    parts = hbm(SimpleNamespace(hbm_bytes=1, devices=1), taken, {}, {}, LoopBuffers(5, 6, 7)).parts
    assert (parts["results"], parts["other temporaries"], parts["batch"]) == (10, 32, 10**8)
    reused = hbm(SimpleNamespace(hbm_bytes=1, devices=1), taken, {}, {}, LoopBuffers(5, 60, 7)).parts
    assert reused["counted twice"] == -22 and "other temporaries" not in reused


def test_how_many_ranks_own_a_tokens_experts():
    """By counting choices of 2 of 6 experts on 3 ranks: 3 of 15 stay on one rank."""
    model = replace_keys(model_preset("nano"), {"moe.experts": 6, "moe.active_experts": 2})
    assert mean_owners(model, 3) == pytest.approx((3 * 1 + 12 * 2) / 15)
    assert mean_owners(model_preset("k2"), 16) == pytest.approx(6.5, abs=0.03)
    assert math.isclose(mean_owners(model, 1), 1.0)


def test_how_often_a_pipelines_ticks_branch():
    column = lambda *ticks: np.array([0 if t in ticks else -1 for t in range(10)])  # noqa: E731
    phases = [
        SimpleNamespace(ticks=slice(0, 4), forward=True, backward=False, loss=False),
        SimpleNamespace(ticks=slice(4, 10), forward=True, backward=True, loss=True),
    ]
    schedule = SimpleNamespace(
        phases=lambda: phases, embed=column(0, 4), loss=column(5, 7, 9), embed_backward=column(9)
    )
    assert branch_shares(schedule) == {4: pytest.approx(1 / 4), 6: pytest.approx((1 / 6 + 3 / 6 + 1 / 6) / 3)}
    assert branch_shares(None) == {}
