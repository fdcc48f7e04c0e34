"""What chunks of a pipeline could keep: slots against a schedule that is played, bytes against real arrays' shapes."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest

from k2jax.aot.compiling import traced_step
from k2jax.aot.cost.activations import kept_activations
from k2jax.aot.cost.chunk_residuals import chunk_residuals, live_slots
from k2jax.aot.cost.estimate import Estimator, estimate, place
from k2jax.aot.cost.jaxpr_flops import loop_costs
from k2jax.aot.report.residual_table import StepTaken, kept_sets, residual_json, residual_table
from k2jax.aot.training import dynamic_shares
from k2jax.config import replace_keys
from k2jax.errors import UserError
from k2jax.parallel.schedule import build_pipeline_schedule
from tests.aot.cost.test_activations import WholeBlocks
from tests.aot.cost.test_estimate import CHIP, TINY, TOPOLOGY, WITHOUT_STAGES, config, devices


def played_slots(schedule):
    """Most chunks that one stage holds, by running the table cell by cell."""
    most = 0
    for stage in range(schedule.stages):
        held = set()
        for tick in range(schedule.ticks):
            row = {name: int(column[tick, stage]) for name, column in schedule.table.items()}
            if row["forward"] >= 0:
                held.add((row["forward"], row["forward_round"]))
            most = max(most, len(held))
            if row["backward"] >= 0:
                held.remove((row["backward"], row["backward_round"]))
        assert not held
    return most


@pytest.mark.parametrize("shape", [(2, 1, 2, 6), (2, 2, 4, 8), (4, 2, 7, 12), (4, 3, 12, 3)])
def test_live_slots_are_those_of_the_schedule_when_it_is_played(shape):
    schedule = build_pipeline_schedule(*shape)
    assert live_slots(schedule) == played_slots(schedule) <= schedule.slots


def by_name(given):
    found = chunk_residuals(given, place(given, CHIP, devices()))
    return found, {one.names[0]: one for one in found.residuals}


@pytest.mark.parametrize(("virtual", "layers"), [(2, 1), (1, 2)])
def test_bytes_of_a_chunk_are_those_of_its_arrays(virtual, layers):
    given = config(rows=16, virtual_stages=virtual)
    tokens, model = 1024, TINY
    _, found = by_name(given)

    def named(x_TD, router_DE, up_DF):
        scores = jnp.einsum("td,de->te", x_TD, router_DE, preferred_element_type=jnp.float32)
        gate_up = x_TD @ up_DF
        tiles = jnp.max(gate_up.reshape(tokens, -1, 128), -1).astype(jnp.float32)
        return {
            "layer_middle": x_TD,
            "router_scores": scores,
            "shared_gate_up": (gate_up.astype("float8_e4m3fn"), tiles),
        }

    sizes = ((tokens, model.d_model), (model.d_model, model.moe.experts), (model.d_model, 2 * model.moe.expert_ffn))
    shapes = jax.eval_shape(named, *(jax.ShapeDtypeStruct(size, jnp.bfloat16) for size in sizes))
    for name, tree in shapes.items():
        assert found[name].chunk_bytes == layers * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
    copies = tokens * model.moe.active_experts
    assert found["expert_gate_up"].mean_bytes == pytest.approx(layers * copies * (2 * 512 + 4 * 8))


def test_keeping_every_residual_spares_the_whole_forward_and_one_exchange():
    given = config()
    found, names = by_name(given)
    estimator = Estimator(given, place(given, CHIP, devices()))
    spared = found.unread + sum(one.flops for one in found.residuals)
    whole = estimator.ticks * estimator.layout.chunk_layers * estimator._layer("moe").forward.flops
    assert spared == pytest.approx(whole, rel=1e-6)
    (exchange,) = estimator._exchanges()
    ways = 6 - 1 / estimator.layout.chunk_layers
    assert names["expert_input"].exchanged == pytest.approx(exchange.bytes / ways)
    assert names["expert_input"].exchange == pytest.approx(exchange.seconds / ways)
    assert [one.names[0] for one in found.residuals if one.exchanged or one.exchange] == ["expert_input"]


FITTING = ("shared_gate_up", "layer_middle", "q_latent", "kv_latent", "attention_output", "attention_lse")


@pytest.mark.parametrize(("virtual", "layers"), [(2, 1), (1, 2)])
def test_a_step_that_keeps_residuals_is_spared_what_the_table_says(virtual, layers):
    plain = config(rows=16, virtual_stages=virtual)
    exact = FITTING[1:]  # the table has shared_gate_up in FP8
    kept = replace_keys(plain, {"train.keep_across": exact})
    found, _ = by_name(plain)
    before, after = (estimate(one, CHIP, devices()) for one in (plain, kept))
    residuals = [one for one in found.residuals if set(one.names) <= set(exact)]
    assert before.flops - after.flops == pytest.approx(found.unread + sum(one.flops for one in residuals), rel=1e-6)
    held = before.hbm.parts["activations"], after.hbm.parts["activations"]
    slots, stream = residuals[0].slots + 1, 2 * 1024 * TINY.d_model  # one for idle cells, and where a layer begins
    unnamed = kept_activations(plain, "moe", 1024, 2).device  # of the chunk's other layers, whose backward comes later
    in_slots = slots * (sum(one.chunk_bytes for one in residuals) + (layers > 1) * layers * stream)
    assert held[1] - held[0] == pytest.approx(in_slots - (layers - 1) * unnamed, rel=1e-6)


@pytest.mark.slow
def test_a_step_that_keeps_residuals_is_estimated_as_it_is_traced():
    """Against one that keeps a norm, to which no product leads: neither runs what no backward reads."""
    estimated, traced = [], []
    for names in (("attention_input",), FITTING):
        given = config(train={"keep_across": names})
        step, estimator = traced_step(given, TOPOLOGY), Estimator(given, place(given, CHIP, devices()))
        loops = loop_costs(step.traced.jaxpr.jaxpr, 8, WholeBlocks(*dynamic_shares(step, given)))
        traced.append(sum(loop.times * loop.cost.flops for loop in loops if not loop.optimizer))
        estimated.append(sum(work.times * work.flops for work in estimator.work()))
        assert estimated[-1] == pytest.approx(traced[-1], rel=0.01)
    assert estimated[0] - estimated[1] == pytest.approx(traced[0] - traced[1], rel=1e-3)


def test_the_table_adds_up_and_says_what_fits():
    given = config()
    placed = place(given, CHIP, devices())
    taken = StepTaken(TOPOLOGY, 89e9, 10.0, estimate(given, CHIP, devices()), placed)
    found = chunk_residuals(given, placed)
    sets = kept_sets(found, 10.0)
    assert sets[-1].room == sum(one.slots * one.chunk_bytes for one in found.residuals)
    spared = found.unread_seconds + sum(one.compute + one.exchange for one in found.residuals)
    assert sets[-1].spared == pytest.approx(spared) == pytest.approx(10.0 - sets[-1].seconds)
    assert all(a.room <= b.room and a.seconds >= b.seconds for a, b in pairwise(sets))
    text = residual_table(given, taken)
    assert "expert_gate_up" in text and "1.00 GB are left below 90.0" in text
    assert len(residual_json(given, taken)["sets"]) == len(sets)


def test_without_a_pipeline_there_is_nothing_to_keep():
    with pytest.raises(UserError, match=r"set config\.parallel\.stage"):
        by_name(config(**WITHOUT_STAGES))
