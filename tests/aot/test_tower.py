"""What the tower takes of a step: bytes that its backward pass reads of its forward pass, and its share of a trace."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from k2jax.aot.compiling import for_tpu, traced_step
from k2jax.aot.cost.jaxpr_flops import loop_costs
from k2jax.aot.cost.tower_cost import residual_bytes, tower_share
from k2jax.aot.report import tables
from k2jax.chips import CHIPS
from k2jax.config import replace_keys
from k2jax.config.presets import model_preset, vision_preset
from k2jax.config.schema import VisionConfig
from k2jax.data.images.patch_packing import empty_rows
from k2jax.data.images.placement import chunk_load
from k2jax.model.vision import vision_features, vision_specs
from k2jax.params import abstract, count
from tests.aot.cost.test_estimate import TINY, config, devices

WIDTH, HEADS, FFN, LENGTH = 32, 2, 64, 128


def model_of(layers):
    vision = VisionConfig(layers=layers, width=WIDTH, heads=HEADS, ffn=FFN, grid=4, patch=2)
    return dataclasses.replace(model_preset("micro"), vision=vision)


def test_every_layer_of_the_tower_keeps_the_results_of_its_products_alone():
    one, two, three = (residual_bytes(model_of(layers), LENGTH) for layers in (1, 2, 3))
    layer = three - two
    assert layer == two - one
    lse = 4 * HEADS
    kept = 2 * (6 * WIDTH + FFN) + lse  # input, q, k, v, output and their sum; hidden
    assert layer == pytest.approx(LENGTH * kept, rel=0.01)  # but for biases, which are not read and yet subtracted


def test_as_many_bytes_are_counted_as_a_backward_pass_that_is_run_holds():
    model = model_of(2)
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), abstract(vision_specs(model), jnp.bfloat16))
    row = jax.tree.map(jnp.asarray, empty_rows(1, LENGTH, model.vision.patch))
    _, pullback = jax.vjp(lambda params: vision_features(params, row, model).features, params)
    held = bytes_of(pullback) - bytes_of(params)
    assert residual_bytes(model, LENGTH) == pytest.approx(held, rel=0.01)


def bytes_of(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


@functools.cache
def share_and_decoder(layers):
    """The tower's share of a step of two stages with 16 rows of 256 patches, or None, and the decoder's FLOPs."""
    topology, patches = "v5p:2x2x2", 256
    devices(topology)
    vision = dataclasses.replace(vision_preset("moonvit"), layers=layers)
    given = config(dataclasses.replace(TINY, vision=vision), 16, 256, 2, {}, stage=2, data=2, expert=2)
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
    assert (share.rows, share.length) == (2, 256)
    vision = dataclasses.replace(vision_preset("moonvit"), layers=2)
    merged, pixels, grid = 4 * vision.width, 3 * vision.patch**2, vision.grid**2
    projector = 2 * 64 * (merged * merged + merged * TINY.d_model)
    forward = chunk_load(256, vision) + projector + 2 * 256 * vision.width * (pixels + grid)
    assert 3.7 * forward < share.flops / 2 < 4.3 * forward  # twice forward, and backward
    assert 1 <= share.seconds / (share.flops / (0.7 * 459e12)) < 1.1
    weights = count(vision_specs(dataclasses.replace(TINY, vision=vision)))
    assert 4 * weights / 8 <= share.memory["weights at rest"] <= 4 * weights / 4  # over 4 or 8 devices
    assert share.memory["weights to compute with"] == 2 * weights
    assert share.memory["their gradient, at the end"] == 4 * weights
    features = 16 * 256 // 4 // 2 * TINY.d_model  # of a stage
    assert share.memory["features, while the decoder runs"] == 2 * features
    assert share.memory["their gradient, while the decoder runs"] == 4 * features
    of_a_row = residual_bytes(dataclasses.replace(TINY, vision=vision), 256)
    assert share.memory["residuals of the rows at once, at the end"] == share.kept == 2 * of_a_row > 0


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
