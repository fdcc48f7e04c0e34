"""What the tower takes of a step: bytes that its backward pass reads of its forward pass, and its share of a trace."""

import dataclasses
from types import SimpleNamespace

from k2jax.analysis.compiling import for_tpu, traced_step
from k2jax.analysis.cost.jaxpr_flops import loop_costs
from k2jax.analysis.cost.tower import residual_bytes, tower_share
from k2jax.analysis.report import tables
from k2jax.chips import CHIPS
from k2jax.config import replace_keys
from k2jax.config.presets import model_preset, vision_preset
from k2jax.config.schema import VisionConfig
from k2jax.data.images.placement import chunk_load
from tests.analysis.cost.test_estimate import TINY, config, devices

WIDTH, FFN, LENGTH = 32, 64, 128


def bytes_of(layers):
    vision = VisionConfig(layers=layers, width=WIDTH, heads=2, ffn=FFN, grid=4, patch=2)
    return residual_bytes(dataclasses.replace(model_preset("micro"), vision=vision), LENGTH)


def test_every_layer_of_the_tower_keeps_at_least_the_operands_of_its_products():
    one, two, three = map(bytes_of, (1, 2, 3))
    layer = three - two
    assert layer == two - one
    operands = 2 * LENGTH * (2 * WIDTH + 4 * WIDTH + 2 * FFN)  # normed twice; q, k, v, output; hidden twice
    assert operands <= layer <= 3 * operands


def share_and_decoder(layers):
    """The tower's share of a step of two stages with eight rows of 256 patches, or None, and the decoder's FLOPs."""
    topology, patches = "v5p:2x2x2", 256
    devices(topology)
    vision = dataclasses.replace(vision_preset("moonvit"), layers=layers)
    given = config(dataclasses.replace(TINY, vision=vision), 8, 256, 2, {}, stage=2, data=2, expert=2)
    given = for_tpu(replace_keys(given, {"data.images.patches": patches}))
    step = traced_step(given, topology)
    loops = loop_costs(step.traced.jaxpr.jaxpr, step.mesh.size)
    decoder = sum(loop.times * loop.cost.flops for loop in loops if not loop.scope)
    if not layers:
        return None, decoder
    share = tower_share(given, CHIPS["v5p"], step.mesh, step.state.params, step.patches, loops)
    return share, decoder


def test_a_steps_tower_is_told_apart_from_its_decoder():
    share, decoder = share_and_decoder(2)
    assert decoder == share_and_decoder(0)[1] > 0
    assert (share.rows, share.length) == (1, 256)
    vision = dataclasses.replace(vision_preset("moonvit"), layers=2)
    merged, pixels, grid = 4 * vision.width, 3 * vision.patch**2, vision.grid**2
    projector = 2 * 64 * (merged * merged + merged * TINY.d_model)
    forward = chunk_load(256, vision) + projector + 2 * 256 * vision.width * (pixels + grid)
    assert 3.7 * forward < share.flops < 4.3 * forward  # twice forward, and backward
    assert share.seconds >= share.flops / (0.7 * 459e12)
    features = 8 * 256 // 4 // 2 * TINY.d_model  # of a stage
    assert share.memory["features, while the decoder runs"] == 2 * features
    assert share.memory["their gradient, while the decoder runs"] == 4 * features
    assert share.kept == share.rows * share.memory["residuals of one row, at the end"] > 0


def test_the_table_says_what_a_step_would_take_without_decoupling():
    share, _ = share_and_decoder(2)
    share = share._replace(rows=3, kept=6e9)
    report = SimpleNamespace(
        hbm=SimpleNamespace(total=10e9, limit=95e9),
        roofline=SimpleNamespace(seconds=2 * share.seconds),
        counts=SimpleNamespace(flops=4 * share.flops),
    )
    text = tables.tower_table(report, share)
    for wanted in ("3 rows of 256 patches", "60.0 % more: 16.0 of 95.0 GB", "50.0 %", "25.0 % of the executed FLOPs"):
        assert wanted in text
