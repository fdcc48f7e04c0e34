"""Grouped matmuls for groups of any size: every row times its group's matrix, and the gradients."""

from functools import partial

from hypothesis import example, given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.grouped_matmul import cost, grouped_matmul, grouped_matmul_transposed
from pallas_kernels.grouped_matmul.mosaic import MatmulTiles, default_tiles, multiply_transposed
from pallas_kernels.grouped_matmul.tiling import plan_visits
from pallas_kernels.ops import dot

K, N = 6, 12
# (M, tiles): rows that are no multiple of a tile, fewer than one, whole tiles; several blocks of K and N.
SHAPES = [(37, MatmulTiles(8, 4, 3, 6)), (3, MatmulTiles(8, 8, 6, 3)), (32, MatmulTiles(16, 4, 6, 6))]
GROUPS = 4


@st.composite
def group_sizes(draw):
    """Draws a shape and sizes of groups: empty groups, one group with all rows, rows without a group."""
    shape = draw(st.integers(0, len(SHAPES) - 1))
    edges = sorted(draw(st.lists(st.integers(0, SHAPES[shape][0]), min_size=GROUPS, max_size=GROUPS)))
    return shape, np.diff([0, *edges]).astype(np.int32)


def arrays(rows, seed):
    rng = np.random.default_rng(seed)
    shapes = (rows, K), (GROUPS, K, N), (rows, N), (GROUPS, K, N)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def oracle(lhs, rhs, dout, dweight, sizes):
    """All products and gradients, group by group in NumPy float64."""
    lhs, rhs, dout, dweight = (np.asarray(a, np.float64) for a in (lhs, rhs, dout, dweight))
    out, dlhs, weight = np.zeros_like(dout), np.zeros_like(lhs), np.zeros_like(rhs)
    dlhs_of_weight, ddout_of_weight = np.zeros_like(lhs), np.zeros_like(dout)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    for g in range(len(sizes)):
        rows = slice(edges[g], edges[g + 1])
        out[rows], dlhs[rows], weight[g] = lhs[rows] @ rhs[g], dout[rows] @ rhs[g].T, lhs[rows].T @ dout[rows]
        dlhs_of_weight[rows], ddout_of_weight[rows] = dout[rows] @ dweight[g].T, lhs[rows] @ dweight[g]
    return out, dlhs, weight, weight, dlhs_of_weight, ddout_of_weight


@partial(
    jax.jit,
    static_argnames=("impl", "tiles"),
)
def ours(lhs, rhs, dout, dweight, sizes, impl, tiles):
    out, vjp = jax.vjp(lambda *a: grouped_matmul(*a, sizes, impl=impl, _tiles=tiles), lhs, rhs)
    weight, vjp_of_weight = jax.vjp(lambda *a: grouped_matmul_transposed(*a, sizes, impl=impl, _tiles=tiles), lhs, dout)
    return out, *vjp(dout), weight, *vjp_of_weight(dweight)


def assert_close(got, expected, tolerance=1e-5):
    """Compares the maximum error with the largest value: of each group for weights, of the whole otherwise."""
    got = np.asarray(got, np.float64)
    axes = (1, 2) if got.ndim == 3 else None
    error, scale = np.abs(got - expected).max(axis=axes), np.abs(expected).max(axis=axes)
    assert np.all(error <= tolerance * scale), (error, scale)


def check(impl, shape, sizes, seed=0):
    rows, tiles = SHAPES[shape]
    lhs, rhs, dout, dweight = arrays(rows, seed)
    expected = oracle(lhs, rhs, dout, dweight, sizes)
    # Rows without a group may hold arbitrary values.
    lhs[sizes.sum() :] = np.nan
    dout[sizes.sum() :] = np.nan
    for got, want in zip(ours(lhs, rhs, dout, dweight, sizes, impl, tiles), expected, strict=True):
        assert_close(got, want)


@settings(max_examples=30)
@given(case=group_sizes(), seed=st.integers(0, 2**31))
@example(case=(0, np.array([0, 37, 0, 0], np.int32)), seed=0)
@example(case=(0, np.array([0, 0, 0, 0], np.int32)), seed=0)
@example(case=(0, np.array([8, 8, 0, 8], np.int32)), seed=0)
@example(case=(0, np.array([3, 2, 1, 13], np.int32)), seed=0)
@example(case=(1, np.array([0, 1, 0, 2], np.int32)), seed=0)
@example(case=(2, np.array([0, 16, 16, 0], np.int32)), seed=0)
def test_products_and_gradients_are_exact_for_any_sizes_of_groups(case, seed):
    check("interpret", *case, seed)


@pytest.mark.parametrize("sizes", [(0, 37, 0, 0), (5, 0, 17, 8), (0, 0, 0, 0)])
def test_the_plain_path_agrees(sizes):
    check("xla", 0, np.array(sizes, np.int32))


def test_a_pair_of_right_sides_is_two_products():
    """The gradient of gate and up weights: one pass over lhs, stored [G, K, 2, N]."""
    rows, tiles = SHAPES[0]
    lhs, _, dout, _ = arrays(rows, 1)
    sizes = np.array([5, 0, 17, 8], np.int32)
    pair = np.stack([dout, 2 * dout[::-1]])
    got = multiply_transposed(lhs, pair, sizes, tiles=tiles, interpret=True)
    assert got.shape == (GROUPS, K, 2, N)
    for part in range(2):
        expected = oracle(lhs, np.zeros((GROUPS, K, N)), pair[part], np.zeros((GROUPS, K, N)), sizes)[2]
        np.testing.assert_allclose(got[:, :, part], expected, atol=1e-5 * np.abs(expected).max())


def test_bfloat16_sums_in_float32():
    """7 tiles of 257 rows whose products are 1: in bfloat16 one tile would give 256, and sums would stop there."""
    rows = 7 * 257
    ones = jnp.ones((rows, 4), jnp.bfloat16)
    sizes = jnp.array([rows, 0], jnp.int32)
    got = grouped_matmul_transposed(ones, ones, sizes, impl="interpret", _tiles=MatmulTiles(257, 257, 4, 4))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got[0], jnp.full((4, 4), rows, jnp.bfloat16))
    assert not np.any(got[1])


@pytest.mark.parametrize(("dtype", "precision"), [(jnp.float32, "HIGHEST"), (jnp.bfloat16, "DEFAULT")])
def test_float32_is_multiplied_at_the_highest_precision(dtype, precision):
    """A CPU does not show the rounding of a TPU."""
    equation = jax.make_jaxpr(dot)(jnp.ones((8, 8), dtype), jnp.ones((8, 8), dtype)).eqns[0]
    assert all(one.name == precision for one in equation.params["precision"])
    assert equation.params["preferred_element_type"] == jnp.float32


plan = jax.jit(plan_visits, static_argnums=(1, 2), static_argnames="empty_groups")


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 20), min_size=5, max_size=5).filter(lambda sizes: sum(sizes) <= 40),
    tile=st.sampled_from([1, 8]),
    empty_groups=st.booleans(),
)
@example(sizes=[0] * 5, tile=8, empty_groups=True)
@example(sizes=[8, 0, 16, 16, 0], tile=8, empty_groups=True)
def test_visits_cover_every_row_once_in_order(sizes, tile, empty_groups):
    visits = plan(jnp.array(sizes, jnp.int32), 40, tile, empty_groups=empty_groups)
    group, place, start, end = (np.asarray(field) for field in visits)
    covered = [(g, t * tile + r) for g, t, s, e in zip(group, place, start, end, strict=True) for r in range(s, e)]
    edges = np.cumsum([0, *sizes])
    assert covered == [(g, r) for g in range(len(sizes)) for r in range(edges[g], edges[g + 1])]
    # A revisited block must still be in VMEM, and surplus visits repeat the last one, so indices never decrease.
    assert np.all(np.diff(place) >= 0) and np.all(np.diff(group) >= 0)
    assert len(group) == 40 // tile + len(sizes) - 1
    if empty_groups:
        assert set(group) == set(range(len(sizes)))
    elif sum(sizes):
        assert set(group) == {g for g, size in enumerate(sizes) if size}


def test_kernels_lower_for_a_tpu():
    sizes = jax.ShapeDtypeStruct((3,), jnp.int32)
    lhs, rhs = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((256, 256), (3, 256, 128)))

    def run(lhs, rhs, sizes):
        return jax.grad(lambda *a: grouped_matmul(*a, sizes, impl="pallas").sum().astype(jnp.float32), (0, 1))(lhs, rhs)

    module = jax.export.export(jax.jit(run), platforms=["tpu"])(lhs, rhs, sizes).mlir_module()
    assert module.count("tpu_custom_call") >= 2


def test_cost_counts_operands_once_for_each_tile_of_the_other():
    tiles = MatmulTiles(512, 128, 1024, 2048)
    forward = cost.multiply(cost.MatmulShape(32768, 24, 7168, 4096, 2), tiles)
    assert forward.flops == 2 * 32768 * 7168 * 4096
    assert forward.bytes_accessed == 2 * (2 * 32768 * 7168 + 64 * 7168 * 4096 + 32768 * 4096)
    tiles = default_tiles(32768, 24, 2048, 7168, transposed=True)
    assert tiles == MatmulTiles(512, 128, 1024, 1024)
    backward = cost.multiply_transposed(cost.MatmulShape(32768, 24, 2048, 7168, 2), tiles, parts=1)
    assert backward.flops == 2 * 32768 * 2048 * 7168
    assert backward.bytes_accessed == 2 * (7 * 32768 * 2048 + 2 * 32768 * 7168 + 24 * 2048 * 7168)


def test_auto_on_a_tpu_is_the_kernel_where_it_can_be(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")

    def kernels(k):
        arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, k), (2, k, 128))]
        return str(jax.make_jaxpr(grouped_matmul)(*arrays, jax.ShapeDtypeStruct((2,), jnp.int32))).count("pallas_call")

    assert kernels(128) == 1 and kernels(64) == 0


def test_wrong_arguments_are_named():
    lhs, rhs, dout, _ = arrays(8, 0)
    sizes = np.array([2, 2, 2, 2], np.int32)
    with pytest.raises(ValueError, match="expected"):
        grouped_matmul(lhs, rhs[:, :5], sizes)
    with pytest.raises(ValueError, match="expected"):
        grouped_matmul_transposed(lhs, dout[:5], sizes)
    with pytest.raises(ValueError, match="both"):
        grouped_matmul(lhs, rhs.astype(jnp.bfloat16), sizes)
    with pytest.raises(ValueError, match="multiples of 128"):
        grouped_matmul(lhs, rhs, sizes, impl="pallas")
