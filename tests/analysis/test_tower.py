"""Bytes that the tower's backward pass reads of its forward pass."""

import dataclasses

from k2jax.analysis.cost.tower import residual_bytes
from k2jax.config.presets import model_preset
from k2jax.config.schema import VisionConfig

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
