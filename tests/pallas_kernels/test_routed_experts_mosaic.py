"""The TPU kernels of routed experts, interpreted: exact for any routing, few residuals, no races, nothing dropped."""

from functools import partial

from hypothesis import example, given, settings
from hypothesis import strategies as st
import jax
from jax import lax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from pallas_kernels.grouped_matmul.mosaic import MatmulTiles
from pallas_kernels.grouped_matmul.packing import join_word, split_word
from pallas_kernels.ops import take
from pallas_kernels.routed_experts import cost, routed_experts
from pallas_kernels.routed_experts.mosaic import ExpertTiles
from pallas_kernels.routed_experts.packed_rows import pack
from pallas_kernels.routed_experts.plan import sort_copies
from pallas_kernels.routed_experts.routing import plan_routing
from tests.pallas_kernels.expert_oracle import (
    ROUTINGS,
    D,
    F,
    assert_close,
    check,
    check_bfloat16,
    inputs,
    loop_oracle,
    route,
)

WEIGHTS = MatmulTiles(8, 4, 4, 4)
# (T, K, E, max_copies, tiles): one token; several tiles of everything; one tile that holds all rows and all tokens.
SHAPES = [
    (1, 1, 1, None, ExpertTiles(8, 8, F, D // 2, 8, WEIGHTS)),
    (37, 3, 7, None, ExpertTiles(8, 4, 4, 2, 4, WEIGHTS)),
    (9, 4, 3, 20, ExpertTiles(64, 8, 6, 4, 16, WEIGHTS._replace(rows=16))),
]


@partial(jax.jit, static_argnames=("max_copies", "tiles", "interpret"))
def ours(arrays, dy, ids, max_copies, tiles, interpret=True):
    """Computes y and the gradients of (x, w13, w2, gates)."""

    def run(x, w13, w2, gates):
        return routed_experts(
            x, w13, w2, ids, gates, impl="interpret", max_copies=max_copies, _tiles=tiles, _interpret=interpret
        )

    y, vjp = jax.vjp(run, *arrays)
    return y, vjp(dy)


def check_poisoned(arrays, dy, ids, max_copies, tiles, interpret=True):
    """Tokens without an expert hold NaN, as do their cotangents."""
    nobody = np.all(ids == arrays[1].shape[0], axis=1)[:, None]

    def run(arrays, dy, ids):
        poisoned = (np.where(nobody, np.nan, arrays[0]), *arrays[1:])
        return ours(poisoned, np.where(nobody, np.nan, dy), ids, max_copies, tiles, interpret)

    check(run, arrays, dy, ids)


def keep_first(ids, experts, copies):
    """Removes the expert of all but the first ``copies`` copies that have one."""
    return np.where(np.cumsum(ids < experts).reshape(ids.shape) <= copies, ids, experts).astype(np.int32)


@settings(max_examples=3)
@given(shape=st.sampled_from(SHAPES[1:]), routing=st.sampled_from(ROUTINGS), seed=st.integers(0, 2**31))
@example(shape=SHAPES[1], routing="one expert", seed=0)
@example(shape=SHAPES[1], routing="uniform", seed=0)
@example(shape=SHAPES[1], routing="none", seed=0)
@example(shape=SHAPES[1], routing="mixed with none", seed=0)
@example(shape=SHAPES[2], routing="few experts", seed=0)
@example(shape=SHAPES[2], routing="mixed with none", seed=1)
def test_output_and_every_gradient_are_exact_for_any_routing(shape, routing, seed):
    """Also with the same expert twice for one token ("one expert"), and NaN in tokens without an expert."""
    tokens, active, experts, max_copies, tiles = shape
    ids = route(routing, tokens, active, experts, seed)
    ids = keep_first(ids, experts, max_copies or ids.size)
    arrays, dy = inputs(tokens, active, experts, seed)
    check_poisoned(arrays, dy, ids, max_copies, tiles)


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["uniform", "none"])
def test_one_token_is_exact(routing):
    tokens, active, experts, max_copies, tiles = SHAPES[0]
    check_poisoned(*inputs(tokens, active, experts, 0), route(routing, 1, 1, 1, 0), max_copies, tiles)


def test_more_copies_than_the_bound_are_not_a_number():
    """Copies that do not fit must not be dropped silently: every output and gradient with rows is NaN."""
    tokens, active, experts, max_copies, tiles = SHAPES[2]
    arrays, dy = inputs(tokens, active, experts, 0)
    ids = route("uniform", tokens, active, experts, 0)
    ids = keep_first(ids, experts, max_copies + 1)
    y, (dx, dw13, dw2, dgates) = ours(arrays, dy, ids, max_copies, tiles)
    assert all(np.all(np.isnan(array)) for array in (y, dx, dgates, dw13, dw2))


def test_bfloat16_inputs_sum_in_float32():
    ids = route("uniform", 120, 2, 3, 2)
    ids[:, 0] = 1
    tiles = ExpertTiles(32, 16, F, 4, 16, WEIGHTS._replace(rows=32))
    check_bfloat16(partial(ours, max_copies=None, tiles=tiles), *inputs(120, 2, 3, 2), ids)


def test_packed_words_hold_the_bits_of_both_halves():
    x = jax.random.normal(jax.random.key(0), (5, 8), jnp.bfloat16)
    low, high = split_word(pack(x))
    np.testing.assert_array_equal(jnp.concatenate([low, high], axis=1), x.astype(jnp.float32))
    np.testing.assert_array_equal(join_word(low, high), pack(x))


def test_copies_between_memories_do_not_race(capfd):
    """The detector forgets its findings when the next kernel starts, but it prints each race."""
    tokens, active, experts = 6, 2, 2
    arrays, dy = inputs(tokens, active, experts, 0)
    ids = route("mixed with none", tokens, active, experts, 0)
    tiles = ExpertTiles(4, 4, F, D // 2, 4, MatmulTiles(16, 8, 4, 4))
    try:
        check_poisoned(
            arrays, dy, ids, None, tiles, pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
        )
        assert "RACE DETECTED" not in capfd.readouterr().out
    finally:
        pltpu.reset_tpu_interpret_mode_state()


plan = jax.jit(plan_routing, static_argnums=(2, 3, 4, 5))


def check_cores(routing, used, row_tile):
    """Cores share no tile that has a row; together they have every row once, in order."""
    group, place, start, end = (np.asarray(field) for field in routing.visits)
    assert group.shape[0] == len(routing.end_C) == 2
    rows = [
        [t * row_tile + r for t, s, e in zip(*core, strict=True) for r in range(s, e)]
        for core in zip(place, start, end, strict=True)
    ]
    assert rows[0] + rows[1] == list(range(used))
    written = [set(core) for core in place]
    in_use = set(range(-(-used // row_tile)))
    assert not written[0] & written[1] & in_use
    assert [max(core, default=used - 1) + 1 for core in rows] == list(routing.end_C)
    assert abs(len(written[0] & in_use) - len(written[1] & in_use)) <= 1


@settings(max_examples=8)
@given(routing=st.sampled_from(ROUTINGS), kept=st.sampled_from([33, 5, 8, 9, 17]), seed=st.integers(0, 2**31))
@example(routing="uniform", kept=5, seed=0)
@example(routing="none", kept=33, seed=0)
def test_each_tile_of_tokens_lists_exactly_the_rows_of_its_copies(routing, kept, seed):
    tokens, active, experts, row_tile, token_tile = 11, 3, 5, 8, 4
    ids = keep_first(route(routing, tokens, active, experts, seed), experts, kept)
    gates = np.random.default_rng(seed).random(ids.shape, np.float32)
    routing = plan(ids, gates, experts, 33, row_tile, token_tile)
    copy_of_row = np.argsort(ids.ravel(), kind="stable")
    used = int(np.sum(ids < experts))
    np.testing.assert_array_equal(routing.token_IR.reshape(-1)[:used], copy_of_row[:used] // active)
    np.testing.assert_array_equal(routing.gate_R1[:used, 0], gates.ravel()[copy_of_row[:used]])
    check_cores(routing, used, row_tile)
    seen = []
    for tile, count in enumerate(np.asarray(routing.count_J)):
        target = np.asarray(routing.target_JP[tile, 0, :count])
        assert len(set(target)) == count
        assert routing.deepest_J[tile] == max([0, *(target // token_tile + 1)])
        token = tile * token_tile + target % token_tile
        assert np.all(target // token_tile < np.asarray(routing.rows_T1)[token, 0])
        seen += list(zip(np.asarray(routing.source_JP[tile, 0, :count]), token, strict=True))
    assert sorted(seen) == [(row, copy_of_row[row] // active) for row in range(used)]


def unfused(x_TD, w13_ED2F, w2_EFD, gates_TK, ids_TK):
    """The textbook: sort, gather, two ragged dots with SwiGLU between them, scale, scatter-add."""
    experts, active = w13_ED2F.shape[0], ids_TK.shape[1]
    expert_N, copy_N = sort_copies(ids_TK.reshape(-1), experts)
    sizes_E = jnp.bincount(expert_N, length=experts)
    h_N2F = lax.ragged_dot(take(x_TD, copy_N // active), w13_ED2F.reshape(experts, x_TD.shape[1], -1), sizes_E)
    gate_NF, up_NF = jnp.split(h_N2F, 2, axis=1)
    y_ND = lax.ragged_dot(jax.nn.silu(gate_NF) * up_NF, w2_EFD, sizes_E)
    y_ND = y_ND * take(gates_TK.reshape(-1), copy_N)[:, None].astype(y_ND.dtype)
    return jnp.zeros_like(x_TD).at[copy_N // active].add(y_ND)


def residual_bytes(run, arrays):
    """Bytes of residuals, without the input arrays."""
    kept = jax.tree.leaves(jax.eval_shape(lambda *a: jax.vjp(run, *a)[1], *arrays))
    own = [(a.shape, a.dtype) for a in arrays]
    total = 0
    for leaf in kept:
        if (leaf.shape, leaf.dtype) in own:
            own.remove((leaf.shape, leaf.dtype))
        else:
            total += leaf.size * leaf.dtype.itemsize
    return total


def test_residuals_are_less_than_half_of_the_unfused_ones():
    tokens, active, experts, width, f_size = 1024, 8, 24, 1792, 512
    shapes = (tokens, width), (experts, width, 2, f_size), (experts, f_size, width)
    x, w13, w2 = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    gates = jax.ShapeDtypeStruct((tokens, active), jnp.float32)
    ids = jnp.asarray(route("uniform", tokens, active, experts, 0))
    fused = residual_bytes(lambda x, w13, w2, g: routed_experts(x, w13, w2, ids, g, impl="pallas"), (x, w13, w2, gates))
    textbook = residual_bytes(lambda *a: unfused(*a, ids), (x, w13, w2, gates))
    preactivation = tokens * active * 2 * f_size * 2
    assert preactivation <= fused <= 1.05 * preactivation
    assert fused <= textbook / 2


def test_unfused_reference_is_the_same_function():
    arrays, _ = inputs(37, 3, 7, 0)
    ids = route("mixed with none", 37, 3, 7, 0)
    assert_close("y", jax.jit(unfused)(*arrays, ids), loop_oracle(*arrays, ids), 1e-5)


@pytest.mark.parametrize(
    ("impl", "platform"), [("pallas", "tpu"), pytest.param("interpret", "cpu", marks=pytest.mark.slow)]
)
def test_lowers_inside_a_checked_shard_map(impl, platform):
    """Tokens vary over the mesh and weights do not: their gradient is a sum over the mesh."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    shapes = (64, 256), (2, 256, 2, 128), (2, 128, 256), (64, 2)
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    ids = jax.ShapeDtypeStruct((64, 2), jnp.int32)

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P("data"), P(), P(), P("data"), P("data")),
        out_specs=(P("data"), P(), P(), P("data")),
    )
    def gradients(x, w13, w2, gates, ids):
        def loss(*a):
            return jnp.sum(routed_experts(*a[:3], ids, a[3], impl=impl))

        return jax.grad(loss, argnums=(0, 1, 2, 3))(x, w13, w2, gates)

    traced = jax.jit(gradients).trace(*arrays, ids)
    assert str(traced.jaxpr).count("psum") >= 2
    traced.lower(lowering_platforms=(platform,))


def test_kernels_lower_for_a_tpu():
    """Five kernels and one of them twice, with the row gathers and the weights in their stored layout."""
    shapes = ((256, 256), jnp.bfloat16), ((2, 256, 2, 128), jnp.bfloat16), ((2, 128, 256), jnp.bfloat16)
    x, w13, w2 = (jax.ShapeDtypeStruct(*shape) for shape in shapes)
    gates, ids = (jax.ShapeDtypeStruct((256, 2), dtype) for dtype in (jnp.float32, jnp.int32))

    def run(x, w13, w2, gates, ids, dy):
        return jax.vjp(lambda *a: routed_experts(*a[:3], ids, a[3], impl="pallas"), x, w13, w2, gates)[1](dy)

    module = jax.export.export(jax.jit(run), platforms=["tpu"])(x, w13, w2, gates, ids, x).mlir_module()
    for kernel in ("up", "activation_gradients", "down_transposed", "combine"):
        assert f"routed_experts_{kernel}" in module
    assert "grouped_matmul_transposed" in module


def test_costs_add_up_to_the_matmuls():
    """Forward 6 FLOPs for each row, D and F; backward twice as many (weight gradients are counted elsewhere)."""
    tiles = ExpertTiles(512, 128, 128, 256, 64)
    sizes = (cost.ExpertShape(32768, 24, 7168, 2048, 2), tiles)
    products = 32768 * 7168 * 2048
    assert cost.up(*sizes, keep_preactivation=False).flops + cost.down(*sizes).flops == 6 * products
    assert cost.activation_gradients(*sizes).flops + cost.down_transposed(*sizes).flops == 6 * products
    weights = 64 * 7168 * 2048
    rows = 32768
    assert cost.up(*sizes, keep_preactivation=True).bytes_accessed == 2 * (rows * (7168 + 3 * 2048) + 2 * weights)
    assert cost.up(*sizes, keep_preactivation=False).bytes_accessed == 2 * (rows * (7168 + 2048) + 2 * weights)
    assert cost.down(*sizes).bytes_accessed == 2 * (rows * (7168 + 2048) + weights)
    assert cost.activation_gradients(*sizes).bytes_accessed == 2 * (rows * (2 * 7168 + 5 * 2048) + weights)
    assert cost.down_transposed(*sizes).bytes_accessed == 2 * (rows * (7168 + 2 * 2048) + 2 * weights)
    assert cost.combine_rows(rows, 4096, 7168, 2).bytes_accessed == 2 * (rows + 4096) * 7168


def test_auto_on_a_tpu_is_the_kernel_where_it_can_be(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")

    def kernels(width):
        shapes = (8, width), (2, width, 2, 128), (2, 128, width)
        arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        ids, gates = (jax.ShapeDtypeStruct((8, 2), dtype) for dtype in (jnp.int32, jnp.float32))
        return str(jax.make_jaxpr(routed_experts)(*arrays, ids, gates)).count("pallas_call")

    assert kernels(256) == 3 and kernels(128) == 0


def test_wrong_arguments_are_named():
    (x, w13, w2, gates), _ = inputs(6, 2, 3, 0)
    ids = route("uniform", 6, 2, 3, 0)
    with pytest.raises(ValueError, match="multiple of 256"):
        routed_experts(x, w13, w2, ids, gates, impl="pallas")
    with pytest.raises(ValueError, match="max_copies"):
        routed_experts(x, w13, w2, ids, gates, impl="interpret", max_copies=0)
    with pytest.raises(ValueError, match="D 7"):
        routed_experts(x[:, :7], w13[:, :7], w2[..., :7], ids, gates, impl="interpret")
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        half = (a.astype(jnp.float16) for a in (x, w13, w2))
        routed_experts(*half, ids, gates, impl="interpret")
