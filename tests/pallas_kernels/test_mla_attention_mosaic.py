"""The Mosaic kernels of MLA attention: visited blocks, memory, races, and what they declare to the compiler.

``test_mla_attention`` compares what they compute with dense float64 references.
"""

from __future__ import annotations

import functools

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.mla_attention import blocks, cost, mla_attention, mosaic, tile
from tests.jaxpr import equations
from tests.pallas_kernels.attention_oracle import (
    KINDS,
    NAMES,
    SCALE,
    B,
    assert_close,
    exits,
    random_inputs,
    reference_forward,
    reference_gradients,
)
from tests.pallas_kernels.test_mla_attention import BACKENDS, assert_matches, problem, run


def test_memory_that_was_never_written_is_not_read(capfd, monkeypatch):
    """The TPU interpreter fills buffers with NaN, runs heads in any order and reports races between its DMAs."""
    params = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
    attend = lambda inputs: mosaic.mla_attention(inputs, SCALE, block=128, interpret=params)  # noqa: E731
    monkeypatch.setitem(BACKENDS, "checked", BACKENDS["mosaic"]._replace(attend=attend))
    inputs, dout = random_inputs(256, heads=2)
    assert_matches(inputs, exits(("tree", "documents"), 256), dout, "checked")
    assert "RACE DETECTED" not in capfd.readouterr().out


def test_an_exit_beyond_the_sequence_is_its_end():
    """In a sequence that is padded to whole blocks, no query sees the padding."""
    inputs, dout = problem("mosaic")
    dout[:] = 1
    length = dout.shape[2]
    beyond, within = (run(inputs, np.full((B, length), exit), dout, "mosaic") for exit in (10_000, length))
    jax.tree.map(np.testing.assert_array_equal, beyond, within)
    assert np.isfinite(beyond[1].max_logit).all()


def test_a_key_per_head_needs_no_rope():
    inputs, dout = random_inputs(130, heads=1)
    exit = exits(("tree", "causal"), 130)
    without = [*inputs]
    without[1], without[3] = inputs[1][..., :0], inputs[3][..., :0]
    out, _, grads = run(without, exit, dout, "mosaic")
    assert grads[1].shape == (B, 1, 130, 0) and grads[3].shape == (B, 130, 0)
    inputs[1], inputs[3] = np.zeros_like(inputs[1]), np.zeros_like(inputs[3])
    assert_close(out, reference_forward(inputs, exit)[0], "out")
    expected = reference_gradients(inputs, exit, dout)
    for n in (0, 2, 4):
        assert_close(grads[n], expected[n], NAMES[n])


# --- the visited blocks ----------------------------------------------------------------------------------------------


def dense_mask(exit):
    i, j = np.arange(len(exit))[:, None], np.arange(len(exit))
    return (j <= i) & (i < exit)


def tiles(mask, block):
    """``[blocks, blocks, block * block]`` of a mask padded with False."""
    mask = np.pad(mask, (0, -len(mask) % block))
    n = len(mask) // block
    return mask.reshape(n, block, n, block).swapaxes(1, 2).reshape(n, n, -1)


schedule = jax.jit(blocks.schedule_pairs, static_argnums=(1, 2))


@settings(max_examples=20)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=B, max_size=B),
    case=st.sampled_from([(1, 4), (50, 16), (64, 16), (90, 4)]),
    group=st.sampled_from(["query", "key"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_schedule_is_the_blocks_with_visible_pairs_in_order(kinds, case, group, seed):
    """Against the dense mask: exactly those and the diagonal, each group complete, first, last and full flagged."""
    length, block = case
    exit = exits(kinds, length, seed)
    listed = schedule(np.pad(exit, ((0, 0), (0, -length % block))).astype(np.int32), block, group)
    rows, pairs = (np.asarray(x)[: listed.steps] for x in listed[:2])
    actual = list(zip(rows, *blocks.unpack(pairs), strict=True))

    expected = []
    for row, row_exit in enumerate(exit):
        parts = tiles(dense_mask(row_exit), block)
        seen, full = parts.any(-1) | np.eye(len(parts), dtype=bool), parts.all(-1)
        pairs = [(i, j, full[i, j]) for i, j in zip(*np.nonzero(seen), strict=True)]
        major = 0 if group == "query" else 1
        pairs.sort(key=lambda pair, major=major: (pair[major], pair[1 - major]))
        of = [pair[major] for pair in pairs]
        for n, (i, j, is_full) in enumerate(pairs):
            first, last = n == 0 or of[n - 1] != of[n], n == len(of) - 1 or of[n + 1] != of[n]
            expected.append((row, i, j, is_full, first, last))
    assert actual == expected


def test_a_tree_of_eight_branches_visits_little_more_than_it_must():
    """Path length 1024, three quarters of it shared: 768 + 8 x 256 tokens."""
    length = 768 + 8 * 256
    exit = np.full(length, length)
    exit[768:] = 768 + (np.arange(8 * 256) // 256 + 1) * 256
    must = tiles(dense_mask(exit), 128).any(-1).sum()
    visited = {group: schedule(exit[None].astype(np.int32), 128, group).steps for group in ("query", "key")}
    assert must <= visited["query"] == visited["key"] <= 1.15 * must
    assert visited["query"] < 0.85 * blocks.max_pairs(length // 128)


def test_schedule_of_the_longest_sequence_fits_scalar_memory():
    length = 131_072
    block = blocks.block_size(length)
    listed = jax.eval_shape(
        lambda exit: blocks.schedule_pairs(exit, block, "key"), jax.ShapeDtypeStruct((1, length), jnp.int32)
    )
    assert listed.pairs.size == 256 * 257 // 2
    assert 4 * (listed.pairs.size + listed.rows.size) < 2**20 / 2


def test_block_size_grows_with_the_sequence():
    assert [blocks.block_size(n) for n in (1, 1023, 1024, 2047, 2048, 131_072)] == [128, 128, 256, 256, 512, 512]


# --- declarations for the compiler-----------------------------------------------------------------------------------


def pallas_calls(heads=64, length=4096, dtype=jnp.bfloat16):
    """The pallas_call equations of forward and backward at the widths of K2, by name."""
    head = (1, heads, length)
    shapes = (*head, 128), (*head, 64), (*head, 128), (1, length, 64), (*head, 128), (*head, 128)
    inputs = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]

    def training(*inputs_and_dout):
        *inputs, dout = inputs_and_dout
        out, vjp, _ = jax.vjp(lambda *a: mla_attention(*a, scale=SCALE, impl="pallas"), *inputs, has_aux=True)
        return out, vjp(dout)

    jaxpr = jax.make_jaxpr(training)(*inputs).jaxpr
    calls = [e for e in equations(jaxpr) if e.primitive.name == "pallas_call"]
    return {e.params["name"].removeprefix("mla_attention_"): e for e in calls}


def test_statistics_and_the_rope_key_are_compact():
    calls = pallas_calls()
    out, lse, peak = (v.aval for v in calls["forward"].outvars)
    per_row_lanes = 64 * 4096 * 128 * 4
    assert out.shape == (1, 64, 4096, 128) and out.dtype == jnp.bfloat16
    assert lse.size == 64 * 4096 and lse.dtype == jnp.float32
    assert peak.size * peak.dtype.itemsize <= per_row_lanes / 100 and peak.size == 64 * 128
    for name, call in calls.items():
        shapes = [v.aval.shape for v in call.invars]
        assert (1, 4096, 64) in shapes and (1, 64, 64, 4096) in shapes, name
        assert (1, 64, 4096, 64) not in shapes, f"{name}: rows of 64 take 128 lanes"
    _, dk_rope, _ = (v.aval for v in calls["key_gradients"].outvars)
    assert dk_rope.shape == (1, 64 // tile.HEADS_PER_STEP, 64, 4096)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_products_sum_in_float32_and_float32_is_multiplied_exactly(dtype):
    """A CPU multiplies float32 exactly whatever precision is requested; a TPU does not."""
    calls = pallas_calls(heads=4, length=512, dtype=dtype)
    for name, count in {"forward": 2, "query_gradients": 3, "key_gradients": 4}.items():
        products = [e for e in equations(calls[name].params["jaxpr"]) if e.primitive.name == "dot_general"]
        assert len(products) == 2 * 4 * count, name  # with and without mask, for four heads
        for product in products:
            assert {v.aval.dtype for v in product.invars} == {jnp.dtype(dtype)}
            assert product.outvars[0].aval.dtype == jnp.float32
            if dtype == jnp.float32:
                assert set(product.params["precision"]) == {jax.lax.Precision.HIGHEST}


def test_costs_are_counted_by_hand():
    calls = pallas_calls()
    visits = 8 * 9 // 2  # blocks of 512
    scores = visits * 64 * 512 * 512
    q, k, v = 64 * 192 * 2, (64 * 128 + 16 * 64) * 2 + 16 * 4, 64 * 128 * 2  # bytes per token; exits come with keys
    expected = {
        "forward": (2 * scores * 320, visits * 512 * (k + v) + 4096 * (q + v + 64 * 4)),
        "query_gradients": (2 * scores * 512, visits * 512 * (k + v) + 4096 * (2 * q + v + 2 * 64 * 4)),
        "key_gradients": (
            2 * scores * 640,
            visits * 512 * (q + v + 2 * 64 * 4) + 4096 * (k + v + 64 * 128 * 2 + v + 16 * 64 * 4),
        ),
    }
    shape = cost.AttentionShape(batch=1, heads=64, length=4096, nope=128, rope=64, value=128, itemsize=2)
    for name, (flops, bytes_accessed) in expected.items():
        estimate = calls[name].params["cost_estimate"]
        assert (estimate.flops, estimate.bytes_accessed, estimate.transcendentals) == (flops, bytes_accessed, scores)
        assert getattr(cost, f"{name}_cost")(shape, 512, 4, visits=36) == estimate
        assert getattr(cost, f"{name}_cost")(shape, 512, 4, visits=18).flops == flops // 2


@pytest.mark.slow
@pytest.mark.devices(2)
def test_runs_on_two_devices_with_arrays_that_do_not_vary():
    check_arrays_that_do_not_vary(2)


def test_runs_on_a_mesh_with_arrays_that_do_not_vary():
    """One device, but the types of a mesh: every value says whether it varies over it."""
    check_arrays_that_do_not_vary(1)


def check_arrays_that_do_not_vary(devices):
    """The rope key and the exits do not vary over the mesh: each device has two rows that share them."""
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split, whole = jax.P("data"), jax.P()
    rng = np.random.default_rng(0)
    rows = 2 * devices
    shapes = (rows, 2, 9, 8), (rows, 2, 9, 4), (rows, 2, 9, 8), (2, 9, 4), (rows, 2, 9, 8)
    inputs = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    exit_BT = jnp.full((2, 9), 9, jnp.int32)

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(impl, *inputs):
        def loss(*inputs):
            return jnp.square(mla_attention(*inputs, exit=exit_BT, scale=0.4, impl=impl)[0]).sum()

        return jax.grad(loss, argnums=range(5))(*inputs)

    def sharded(impl):
        specs = (split, split, split, whole, split)
        body = functools.partial(gradients, impl)
        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=True))

    actual = jax.block_until_ready(sharded("interpret")(*inputs))
    parts = [[x if x.ndim == 3 else x[first : first + 2] for x in inputs] for first in range(0, rows, 2)]
    alone = [gradients("xla", *part) for part in parts]
    for index, (got, *each) in enumerate(zip(actual, *alone, strict=True)):
        expected = sum(each) if index == 3 else jnp.concatenate(each)
        assert jnp.abs(got - expected).max() <= 1e-5 * jnp.abs(expected).max(), index
    assert "tpu_custom_call" in sharded("pallas").trace(*inputs).lower(lowering_platforms=("tpu",)).as_text()


# --- schedules that do not fit into scalar memory ---------------------------------------------------------------------


@pytest.mark.parametrize("length", [512 * n for n in (512, 521, 2048, blocks.MAX_BLOCKS)])
def test_a_panel_fits_scalar_memory_whatever_the_length(length):
    n = length // 512
    assert not blocks.fits(1, n)
    groups = blocks.groups_per_panel(n)
    assert 8 * groups * n <= blocks.SCALAR_BYTES
    rows, firsts = blocks.panels(2, n)
    covered = {(int(row), int(first) + g) for row, first in zip(rows, firsts, strict=True) for g in range(groups)}
    assert covered == {(row, g) for row in range(2) for g in range(n)}
    assert rows.size * groups < 2 * (n + rows.size)
    with pytest.raises(ValueError, match="kernels number 16,383"):
        blocks.groups_per_panel(blocks.MAX_BLOCKS + 1)


@pytest.mark.parametrize("group", ["query", "key"])
@pytest.mark.parametrize("both_directions", [False, True])
def test_panels_list_what_one_schedule_lists(group, both_directions, monkeypatch):
    exit = exits(("tree", "documents"), 320, 3).astype(np.int32)
    start = np.tile(np.arange(320, dtype=np.int32) // 64 * 64, (B, 1)) if both_directions else None
    whole = blocks.schedule_pairs(exit, 32, group, start)
    expected = set(zip(*(np.asarray(x)[: whole.steps] for x in whole[:2]), strict=True))
    monkeypatch.setattr(blocks, "SCALAR_BYTES", 8 * 10 * 4)  # panels of four groups of ten, the last begins early
    assert blocks.panels(B, 10)[1].tolist() == [0, 4, 6] * B
    listed = []
    for row, first in zip(*blocks.panels(B, 10), strict=True):
        part = blocks.schedule_pairs(exit, 32, group, start, blocks.Panel(row, first, 4))
        listed += zip(*(np.asarray(x)[: part.steps] for x in part[:2]), strict=True)
    assert set(listed) == expected


@pytest.mark.parametrize("scalar_bytes", [8 * 6, pytest.param(8, marks=pytest.mark.slow)])
def test_panels_compute_what_one_schedule_computes(scalar_bytes, monkeypatch):
    """Rows of three blocks, in panels of two groups and of one; the largest logit of a row is in any of them."""
    inputs, dout = random_inputs(384, heads=1)
    exit = exits(("tree", "documents"), 384)
    whole = run(inputs, exit, dout, "mosaic")
    monkeypatch.setattr(blocks, "SCALAR_BYTES", scalar_bytes)
    monkeypatch.setitem(BACKENDS, f"panels {scalar_bytes}", BACKENDS["mosaic"])  # a program of its own
    panels = assert_matches(inputs, exit, dout, f"panels {scalar_bytes}")
    jax.tree.map(np.testing.assert_array_equal, panels, whole)


@pytest.mark.slow
def test_panels_of_attention_in_both_directions_compute_what_one_schedule_computes(monkeypatch):
    inputs, dout = random_inputs(384, heads=1)
    start = jnp.tile(jnp.arange(384, dtype=jnp.int32) // 192 * 192, (B, 1))

    def attend(*arrays):
        options = {"start": start, "exit": start + 192, "scale": SCALE, "impl": "interpret"}
        (out, stats), vjp = jax.vjp(lambda *a: mla_attention(*a, **options), *arrays)
        return out, stats, vjp((jnp.asarray(dout), jax.tree.map(jnp.zeros_like, stats)))

    whole = jax.jit(attend)(*inputs)
    monkeypatch.setattr(blocks, "SCALAR_BYTES", 8 * 6)
    panels = jax.jit(lambda *a: attend(*a))(*inputs)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), panels, whole)


def test_the_cost_of_a_panel_is_its_share():
    length = 262_144
    calls = pallas_calls(heads=4, length=length)
    shape = cost.AttentionShape(batch=1, heads=4, length=length, nope=128, rope=64, value=128, itemsize=2)
    whole = cost.forward_cost(shape, 512, 4, blocks.max_pairs(512))
    assert calls["forward"].params["cost_estimate"].flops == whole.flops // 3
