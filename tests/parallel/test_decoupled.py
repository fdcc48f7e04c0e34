"""The decoupled encoder's gradients are those of a program that differentiates tower and decoder together."""

import functools

import jax
import numpy as np
import pytest

from k2jax.batch import PackedBatch, pack_row, stack_rows
from k2jax.config import Config
from k2jax.data.images.patch_packing import PatchChunk, pack_rows
from k2jax.data.images.placement import PatchRows, place_chunks
from k2jax.losses import NLL
from k2jax.model.vision import multimodal_specs, vision_features
from k2jax.parallel import decoupled as parallel_decoupled
from k2jax.parallel.accumulate import FEATURES, loss_shares
from k2jax.parallel.gradients import make_objective
from k2jax.parallel.resharding import from_logical
from k2jax.params import map_specs
from k2jax.train.program import Program
from k2jax.train.step import make_gradient_step
from tests.parallel.tiny import config_of

TOWER = {
    "model.vision.layers": 2,
    "model.vision.width": 32,
    "model.vision.heads": 2,
    "model.vision.ffn": 48,
    "model.vision.patch": 2,
    "model.vision.grid": 4,
    "train.batch_size": 8,
    "train.micro_batches": 2,
    "optimizer.qk_clip_tau": 0.02,
}
PATCHES = 64
GRIDS = [(1, 2, 2), (1, 4, 4), (2, 2, 4), (1, 2, 6)]


def config_with(layers: int, overrides: dict | None = None) -> Config:
    return config_of(TOWER | {"model.layers": layers} | (overrides or {}))


def batch_for(config: Config, devices: int, patches: int = PATCHES, each: int = 1) -> PackedBatch:
    """Eight rows of 32 tokens, six of them with two images or a clip each, on this many devices."""
    rng = np.random.default_rng(0)
    rows, own, chunks, places = [], [], [], []
    for number in range(8):
        grids = [GRIDS[number % 4], GRIDS[(number + 1) % 4]] if number < 6 else []
        rows.append(pack_row([rng.integers(2, 258, 30)], 32))
        made = [PatchChunk(rng.uniform(-1, 1, (np.prod(g), 12)).astype(np.float32), g) for g in grids]
        own.append([chunk.patches for chunk in made])
        places.append([chunk.features for chunk in made])
        chunks += made
    shape = PatchRows(8, -(-8 * each // devices) * devices, patches, devices, each)
    packed = pack_rows(chunks, place_chunks(own, shape, config.model.vision), length=patches, patch=2)
    feature, numbers = np.full((8, 32), -1, np.int32), iter(packed.features)
    for row, counts in enumerate(places):
        at = 3
        for count in counts:
            feature[row, at : at + count] = next(numbers)
            at += count + 2
    batch = stack_rows(rows)
    batch.targets["weights"][feature >= 0] = 0
    return batch.replace(media=feature, patches=packed.batch)


def params_of(config: Config):
    """Weights of which no bias is 0 and no norm 1."""
    rng = np.random.default_rng(1)

    def draw(spec):
        return ((spec.init == "ones") + rng.normal(0, 0.1, spec.shape)).astype(np.float32)

    return map_specs(draw, multimodal_specs(config.model))


@functools.cache
def together(layers: int):
    """Loss, gradients and the tower's max logit of one device: tower and decoder differentiated as one program."""
    config = config_with(layers)
    params, batch = params_of(config), batch_for(config, 1)
    loss = NLL()
    objective = make_objective(config, loss, loss.denominators(batch.targets))

    def total(params):
        text = {name: part for name, part in params.items() if name != "vision"}
        seen = vision_features(params["vision"], batch.patches, config.model)
        table = seen.features.reshape(-1, seen.features.shape[-1])
        rows = batch.replace(patches=None)
        shares, stats = loss_shares({**text, FEATURES: table}, rows, objective, config)
        return shares.total + objective.balance * stats.balance_loss, (shares.total, seen.max_logit)

    (_, (loss, max_logit)), grads = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    return jax.device_get((loss, grads, max_logit))


def gradient_sums(config: Config, devices: int, params, make_batch):
    """The sums of the training step's program on a mesh, and its gradients in their logical form."""
    program = Program(config, jax.devices()[:devices])
    store = functools.partial(from_logical, program.layout)
    stored = jax.jit(store, out_shardings=program.shardings.params)(params)
    batch = program.batch_sharding().put(make_batch(config, devices))
    step = jax.jit(make_gradient_step(config, program.layout, program.loss))
    sums = step(stored, batch, program.loss.denominators(batch.targets))
    return sums, jax.device_get(program.checkpoint_layout().logical_params(sums.grads))


def assert_same_gradients(expected, grads):
    for (path, theirs), mine in zip(jax.tree.leaves_with_path(expected), jax.tree.leaves(grads), strict=True):
        name = jax.tree_util.keystr(path)
        assert "router_bias" in name or np.any(theirs), f"{name} shows nothing"
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max(), err_msg=name)


def assert_equal(layers: int, overrides: dict, devices: int, make_batch=batch_for):
    expected_loss, expected, expected_logits = together(layers)
    config = config_with(layers, overrides)
    sums, grads = gradient_sums(config, devices, params_of(config), make_batch)
    assert_same_gradients(expected, grads)
    np.testing.assert_allclose(sums.stats.max_logit["vision"], expected_logits, rtol=1e-5)
    np.testing.assert_allclose(sums.shares.total, expected_loss, rtol=1e-6)


def in_loops(jaxpr, inside=False):
    """Equations of the bodies of loops, those of programs within them included."""
    for equation in jaxpr.eqns:
        if inside:
            yield equation
        for part in jax.core.jaxprs_in_params(equation.params):
            yield from in_loops(part, inside or equation.primitive.name in ("scan", "while"))


@pytest.mark.parametrize(
    "stages", [1, pytest.param(2, marks=[pytest.mark.slow, pytest.mark.devices(2)])], ids=["one stage", "two stages"]
)
def test_a_micro_batch_adds_to_the_gradient_of_the_features_that_it_shows_alone(monkeypatch, stages):
    """A gradient of the step's whole table for every micro-batch would cost more than the tower."""
    monkeypatch.setattr(parallel_decoupled, "PATCHES_AT_ONCE", 1)  # or the tower's own arrays have the table's shape
    overrides = {"parallel.stage": stages, "train.micro_batches": 8, "model.vision.width": 48}
    config = config_with(3, overrides)
    program = Program(config, jax.devices()[:stages])
    batch = program.batch_sharding().put(batch_for(config, stages, patches=76))  # no weight is as large as this table
    step = make_gradient_step(config, program.layout, program.loss)
    jaxpr = jax.make_jaxpr(step)(program.init().params, batch, program.loss.denominators(batch.targets)).jaxpr
    table = (8 * 76 // 4 // stages, config.model.d_model)
    control = {"cond", "scan", "while", "jit", "pjit", "pvary", "pcast", "shard_map"}
    made = [e.primitive.name for e in in_loops(jaxpr) for out in e.outvars if out.aval.shape == table]
    assert set(made) - control == {"scatter-add"}


@pytest.mark.slow  # of one device, several rows for each row of tokens are in the default run
@pytest.mark.parametrize("at_once", [rows * PATCHES for rows in (1, 4, 8)], ids=lambda n: f"{n} patches at once")
def test_on_one_device_the_gradients_are_those_of_one_program(monkeypatch, at_once):
    monkeypatch.setattr(parallel_decoupled, "PATCHES_AT_ONCE", at_once)
    assert_equal(1, {}, 1)  # a dense layer


SEVERAL = functools.partial(batch_for, patches=16, each=2)
"""Rows of the tower that hold a quarter as much, two for each row of tokens, which both its images fill."""


def test_two_rows_of_the_tower_for_each_row_of_tokens_have_the_gradients_of_a_long_one():
    batch = SEVERAL(config_with(1), 1)
    assert batch.patches.start.shape == (16, 16) and len(batch.tokens) == 8
    assert_equal(1, {"data.images.rows": 2}, 1, SEVERAL)


@pytest.mark.parametrize(
    ("rows", "length", "expected"), [(4, 144, 4), (12, 1024, 4), (6, 1024, 3), (7, 600, 1), (5, 4096, 1), (2, 16384, 1)]
)
def test_every_turn_of_the_tower_has_as_many_rows(rows, length, expected):
    assert parallel_decoupled.rows_at_once(rows, length) == expected


@pytest.mark.slow
@pytest.mark.devices(4)
@pytest.mark.parametrize(
    "mesh",
    [
        {"parallel.data": 4},
        {"parallel.data": 2, "parallel.expert": 2},
        {"parallel.data": 2, "parallel.stage": 2},
        {"parallel.data": 2, "parallel.stage": 2, "parallel.executor": "autodiff"},
        {"parallel.data": 2, "parallel.tensor": 2},
        {"parallel.data": 2, "parallel.context": 2},
    ],
    ids=lambda mesh: " ".join(f"{key.partition('.')[2]} {value}" for key, value in mesh.items()),
)
def test_on_meshes_the_gradients_are_those_of_one_program(mesh):
    assert_equal(3, mesh, 4)


@pytest.mark.slow
@pytest.mark.devices(4)
@pytest.mark.parametrize(
    "mesh", [{"parallel.data": 2, "parallel.stage": 2}, {"parallel.data": 2, "parallel.context": 2}]
)
def test_on_meshes_two_rows_of_the_tower_for_each_row_of_tokens_have_the_gradients_of_a_long_one(mesh):
    assert_equal(3, {**mesh, "data.images.rows": 2}, 4, SEVERAL)
