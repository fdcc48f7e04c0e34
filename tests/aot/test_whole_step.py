"""One whole training step, compiled for a TPU: what the trace says of it is what the compiler made."""

import dataclasses

import pytest

from k2jax.aot.compiling import compile_training
from tests.aot.cost.test_estimate import TINY, config, devices

TOPOLOGY = "v5e:2x2"
MODEL = dataclasses.replace(
    TINY,
    layers=2,
    dense_layers=0,
    d_model=256,
    vocab=1024,
    moe=dataclasses.replace(TINY.moe, expert_ffn=128, experts=8, active_experts=2),
)
MEMORY = {"remat": "selective", "store_fp8": ("expert_gate_up",), "offload": ("layer_input",)}


@pytest.mark.slow
def test_a_step_with_fp8_and_offloading_compiles_and_does_what_its_trace_says():
    devices(TOPOLOGY)
    layout = {"stage": 1, "virtual_stages": 1, "data": 2, "expert": 2}
    report = compile_training(config(MODEL, 8, 512, 2, MEMORY, **layout), TOPOLOGY)
    # Kernels that recompute nothing that is read are gone from both.
    assert report.compiled_flops == pytest.approx(report.counts.flops, rel=0.02)
    layer_input = 2 * 512 * 256  # bytes of a row; 2 rows a device, 2 layers, out and back
    assert report.counts.host_bytes == 2 * 2 * 2 * layer_input
    exchanges = [row.count for row in report.collectives if row.kind == "ragged-all-to-all"]
    assert sum(exchanges) == 2 * 2 * 4  # two micro-batches and layers; there and back, and the transposes
    assert report.hbm.fits and not report.notes


@pytest.mark.slow
def test_a_pipeline_that_keeps_residuals_compiles_and_does_what_its_trace_says():
    """With the kernels of attention and experts: the compiled program has no product that the trace has not."""
    kept = ("attention_output", "attention_lse", "layer_middle", "expert_gate_up", "expert_input", "shared_gate_up")
    devices(TOPOLOGY)
    layout = {"stage": 2, "virtual_stages": 1, "data": 1, "expert": 2}
    found = {}
    for names in ((), kept):
        memory = {"keep_across": names, "store_fp8": names[-3:]}
        report = compile_training(config(MODEL, 8, 512, 4, memory, **layout), TOPOLOGY)
        found[bool(names)] = report
        assert report.hbm.fits and not report.notes
    assert found[True].compiled_flops == pytest.approx(found[True].counts.flops, rel=0.02)
    assert found[True].compiled_flops < 0.85 * found[False].compiled_flops
