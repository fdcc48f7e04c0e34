"""What a layer keeps and recomputes, against what JAX's differentiation of the real step keeps and repeats."""

import dataclasses

from jax.extend import core
import pytest

from k2jax.aot.compiling import traced_step
from k2jax.aot.cost.activations import (
    PRODUCERS,
    fp8_names,
    kept_activations,
    offload_names,
    recomputed_matrices,
)
from k2jax.aot.cost.estimate import Estimator, estimate, place
from k2jax.aot.cost.expert_rows import backward_bytes, expert_buffers, grouped_product
from k2jax.aot.cost.jaxpr_flops import DynamicShares, TracedCost, loop_costs
from k2jax.aot.training import dynamic_shares
from k2jax.config import model_preset
from k2jax.config.activations import BY_NAME, POLICIES
from k2jax.model.specs import model_specs
from k2jax.params import named_specs
from tests.aot.cost.test_estimate import CHIP, TINY, TOPOLOGY, WITHOUT_STAGES, config, devices

HALF_RECOMPUTED = {"remat": "selective", "recompute": ("expert_input", "attention_output", "layer_middle")}
STORED = {"remat": "selective", "store_fp8": ("expert_gate_up", "shared_gate_up", "expert_input")}
OFFLOADED = {
    "remat": "selective",
    "store_fp8": ("expert_gate_up",),
    "offload": ("layer_input", "expert_gate_up", "attention_output"),
}


BLOCKS = 4  # of 256 tokens in a row of 1,024


class WholeBlocks(DynamicShares):
    """The attention kernels declare whole blocks of the causal triangle, the formulas count half of the square."""

    def kernel_flops(self, name, declared):
        return super().kernel_flops(name, declared) / ((BLOCKS + 1) / BLOCKS if name.startswith("mla_") else 1)


def stacked_bytes(jaxpr, layers):
    """Bytes that the first loop over so many layers, the forward pass, stacks for later: on the device, on the host."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan" and equation.params["length"] == layers:
            sizes = [0, 0]
            for var in equation.outvars[equation.params["num_carry"] :]:
                sizes["Host" in str(var.aval.memory_space)] += var.aval.size * var.aval.dtype.itemsize
            return sizes
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if isinstance(inner, core.Jaxpr) and (sizes := stacked_bytes(inner, layers)):
                return sizes
    return None


@pytest.mark.parametrize(
    "train",
    [{"remat": "none"}, HALF_RECOMPUTED, STORED, OFFLOADED],
    ids=["none", "half recomputed", "fp8", "offloaded"],
)
def test_the_estimate_keeps_and_repeats_what_the_traced_step_does(train):
    given = config(**WITHOUT_STAGES, train=train)
    step, placement = traced_step(given, TOPOLOGY), place(given, CHIP, devices())
    estimator, jaxpr = Estimator(given, placement), step.traced.jaxpr.jaxpr
    kept = kept_activations(given, "moe", estimator.tokens, estimator.ranks)
    layers = TINY.layers - TINY.dense_layers
    device, host = stacked_bytes(jaxpr, layers)
    assert kept.host * layers == host
    # Uncounted are integers of the exchange's route; without a policy also weights that JAX stacks in another layout.
    uncounted = device - kept.device * layers
    weights = 4 * 2 * (128 * 2048 + 256 * 1536 + 3 * 512 * 512) if train["remat"] == "none" else 0
    assert abs(uncounted - weights) < 0.01 * (device + host)
    loops = loop_costs(jaxpr, 8, WholeBlocks(*dynamic_shares(step, given)))
    traced = sum((loop.cost.times(loop.times) for loop in loops if not loop.optimizer), TracedCost())
    assert traced.host_bytes == sum(work.times * work.host_bytes for work in estimator.work())
    assert sum(work.times * work.flops for work in estimator.work()) == pytest.approx(traced.flops, rel=0.002)


def test_every_matrix_but_down_projections_makes_one_activation():
    for name in ("k2", "moonlight", "smollm2_135m"):
        model = model_preset(name)
        for group in ("dense", "moe"):
            specs = [(key, spec) for key, spec in named_specs(model_specs(model)) if key.startswith(group + "/")]
            matrices = {key.removeprefix(group + "/") for key, spec in specs if spec.inputs}
            full = dataclasses.replace(config(), model=model, train=dataclasses.replace(config().train, remat="full"))
            if matrices:
                assert matrices - recomputed_matrices(full, group) == {key for key in matrices if key.endswith("w2")}
    assert set(PRODUCERS) <= set(BY_NAME)


def test_buffers_of_experts_by_hand():
    """1,024 tokens on one of P ranks, 4 choices of 16 experts: room for 1,024 rows of each rank and for all choices."""
    given = config(expert_copies=4.0)
    two, eight = (expert_buffers(given, 1024, ranks).rows for ranks in (2, 8))
    assert (two.tokens, eight.tokens) == (2 * 1024, 8 * 1024)
    assert (two.copies, eight.copies) == (2 * 4096, 4 * 4096)  # never more than all ranks choose, nor than 4 x the mean
    halves = expert_buffers(config(expert_copies=4.0, expert_chunks=2), 1024, 8)
    assert (halves.rows.copies, halves.part.copies) == (4 * 4096, 2 * 4096)
    rows = 3 * 2 * 4096 * (512 + 512) + 2 * 4 * 1024 * 512  # sorted rows and gradients, and what is received and sent
    assert backward_bytes(config(expert_copies=4.0, expert_chunks=2), 1024, 8) == 2 * rows


def test_partly_filled_tiles_by_enumeration():
    """Every row of a tile at which an expert's rows may begin, counted."""
    for rows, experts, tile in ((683, 24, 512), (100, 4, 128), (1365, 24, 512), (1, 2, 128)):
        met = lambda size, rows=rows: sum((start + rows - 1) // size + 1 for start in range(size)) / size  # noqa: E731
        product = grouped_product(rows, experts, tile * experts)
        assert (product.visits, product.computed) == pytest.approx((met(tile), 128 * met(128)))


def test_offloading_waits_for_the_host_where_it_is_slower():
    """All kept activations of a layer take longer over PCIe than the layer computes; its input alone does not."""
    times = {}
    for name in (("layer_input",), offload_names(TINY, POLICIES["selective"])):
        given = config(**WITHOUT_STAGES, train={"remat": "selective", "offload": name})
        one = estimate(given, CHIP, devices())
        assert one.roofline.host == pytest.approx(2 * 2 * one.host_bytes / (0.8 * 16e9))  # two micro-batches, both ways
        times[len(name) == 1] = one.roofline
    assert times[True].ticks == pytest.approx(times[True].compute)
    assert times[False].ticks == pytest.approx(times[False].host)
    assert set(fp8_names(TINY)) == {"dense_gate_up", "expert_input", "expert_gate_up", "shared_gate_up"}
