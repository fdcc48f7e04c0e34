"""Routed experts: exact for any routing, forward and backward, with gathers only and few residuals."""

from functools import partial

from hypothesis import example, given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.routed_experts import expert_counts, routed_experts
from pallas_kernels.routed_experts.overflow import blocks_per_round
from pallas_kernels.routed_experts.plan import capacity, first_positions, plan_capacity, sort_copies
from tests.jaxpr import equations
from tests.pallas_kernels.expert_oracle import (
    NAMES,
    ROUTINGS,
    F,
    assert_close,
    check,
    check_bfloat16,
    dense,
    inputs,
    route,
)

# (T, K, E, capacity_factor, block): tight and ample capacity, several rounds of blocks, sizes that divide no tile.
SHAPES = [
    (1, 3, 5, 1.25, 4),
    (61, 2, 3, 0.05, 4),
    (37, 3, 7, 1.0, 5),
    (50, 4, 6, 8.0, 16),
]
TIGHT, FULL, AMPLE = SHAPES[1:]


@partial(jax.jit, static_argnames=("capacity_factor", "block"))
def ours(arrays, dy, ids, capacity_factor, block):
    """Computes y and the gradients of (x, w13, w2, gates)."""

    def run(x, w13, w2, gates):
        return routed_experts(x, w13, w2, ids, gates, capacity_factor=capacity_factor, block=block)

    y, vjp = jax.vjp(run, *arrays)
    return y, vjp(dy)


@settings(max_examples=12)
@given(shape=st.sampled_from(SHAPES), routing=st.sampled_from(ROUTINGS), seed=st.integers(0, 2**31))
@example(shape=SHAPES[0], routing="uniform", seed=0)
@example(shape=TIGHT, routing="one expert", seed=0)
@example(shape=FULL, routing="one expert", seed=0)
@example(shape=FULL, routing="mixed with none", seed=0)
@example(shape=AMPLE, routing="few experts", seed=0)
def test_output_and_every_gradient_are_exact_for_any_routing(shape, routing, seed):
    tokens, active, experts, capacity_factor, block = shape
    ids = route(routing, tokens, active, experts, seed)
    check(partial(ours, capacity_factor=capacity_factor, block=block), *inputs(tokens, active, experts, seed), ids)


def test_gradients_at_the_size_of_a_small_model():
    """Several hundred rows an expert: the sums over rows must still be exact to 1e-5 for each expert."""
    ids = route("uniform", 600, 4, 3, 1)
    ids[:300, 0] = 2
    check(partial(ours, capacity_factor=1.0, block=32), *inputs(600, 4, 3, 1), ids)


def test_bfloat16_inputs_sum_in_float32():
    ids = route("one expert", 600, 4, 3, 2)
    ids[:100] = route("uniform", 100, 4, 3, 2)
    check_bfloat16(partial(ours, capacity_factor=0.05, block=4), *inputs(600, 4, 3, 2), ids)


def test_the_shapes_cover_overflow_of_several_rounds_and_none():
    def blocks(shape, routing):
        tokens, active, experts, factor, block = shape
        slots = capacity(tokens * active, experts, factor)
        ids = route(routing, tokens, active, experts, 0)
        counts = np.bincount(ids.ravel(), minlength=experts + 1)[:experts]
        got = int(jax.jit(plan_capacity, static_argnums=(1, 2, 3))(ids, experts, slots, block).blocks)
        assert got == sum(-(-max(int(count) - slots, 0) // block) for count in counts)
        return got

    assert blocks(AMPLE, "uniform") == 0
    assert blocks(FULL, "none") == 0
    assert blocks(TIGHT, "one expert") > 2 * blocks_per_round(61 * 2, TIGHT[-1])


def test_inside_scan_and_checkpoint():
    """Three layers scanned and rematerialised have the gradients of three dense layers."""
    layers, tokens, active, experts = 3, 29, 2, 5
    (x, *_), dy = inputs(tokens, active, experts, 0)
    stacked = [np.stack(leaf) for leaf in zip(*(inputs(tokens, active, experts, i)[0][1:] for i in range(layers)))]  # noqa: B905
    ids = np.stack([route("few experts", tokens, active, experts, i) for i in range(layers)])

    def scanned(x, w13, w2, gates, ids):
        @jax.checkpoint
        def layer(x, p):
            w13, w2, gates, ids = p
            return x + routed_experts(x, w13, w2, ids, gates, capacity_factor=0.5, block=4), None

        return jnp.sum(jax.lax.scan(layer, x, (w13, w2, gates, ids))[0] * dy)

    def unrolled(x, w13, w2, gates, ids):
        for i in range(layers):
            x = x + dense(x, w13[i], w2[i], gates[i], ids[i])
        return jnp.sum(x * dy)

    got = jax.jit(jax.grad(scanned, argnums=(0, 1, 2, 3)))(x, *stacked, ids)
    with jax.enable_x64(True):
        exact = [np.asarray(a, np.float64) for a in (x, *stacked)]
        expected = jax.jit(jax.grad(unrolled, argnums=(0, 1, 2, 3)))(*exact, ids)
    for name, g, e in zip(NAMES, got, expected, strict=True):
        # Weights of all layers: compare each layer's each expert.
        merge = (lambda a: np.asarray(a).reshape(-1, *a.shape[2:])) if name.startswith("w") else np.asarray
        assert_close(name, merge(g), merge(e), 1e-5)


@pytest.mark.parametrize("shape", [TIGHT, AMPLE])
def test_tokens_without_an_expert_change_nothing_whatever_they_hold(shape):
    """Padding rows of NaN give zero output and gradients, and leave the gradients of the others as they were."""
    tokens, active, experts, factor, block = shape
    (x, *weights), dy = inputs(tokens, active, experts, 3)
    ids = route("uniform", tokens, active, experts, 3)
    ids[30:] = experts
    poisoned_x, poisoned_dy = x.copy(), dy.copy()
    poisoned_x[30:], poisoned_dy[30:] = np.nan, np.nan
    y, (dx, dw13, dw2, dgates) = ours((x, *weights), dy, ids, factor, block)
    poisoned = ours((poisoned_x, *weights), poisoned_dy, ids, factor, block)
    jax.tree.map(np.testing.assert_array_equal, poisoned, (y, (dx, dw13, dw2, dgates)))
    assert not np.any(y[30:]) and not np.any(dx[30:]) and not np.any(dgates[30:])


def test_experts_without_tokens_get_exactly_zero():
    arrays, dy = inputs(*AMPLE[:3], 4)
    ids = np.where(route("uniform", *AMPLE[:3], 4) % 2 == 0, 2, 5).astype(np.int32)
    _, (_, dw13, dw2, _) = ours(arrays, dy, ids, *AMPLE[3:])
    for unused in (0, 1, 3, 4):
        assert not np.any(dw13[unused]) and not np.any(dw2[unused])


def test_rows_are_only_gathered():
    """No scatter of anything but scalar integers, forward or backward: rows move by gathers and slices."""
    arrays, dy = inputs(37, 3, 7, 0)
    ids = route("uniform", 37, 3, 7, 0)
    jaxpr = jax.make_jaxpr(partial(ours, capacity_factor=1.0, block=5))(arrays, dy, ids).jaxpr
    found = list(equations(jaxpr))
    assert sum(equation.primitive.name == "while" for equation in found) >= 4
    assert sum(equation.primitive.name == "gather" for equation in found) >= 10
    for equation in found:
        if equation.primitive.name.startswith("scatter"):
            operand = equation.invars[0].aval
            assert operand.ndim == 1 and jnp.issubdtype(operand.dtype, jnp.integer), equation


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_residuals_are_the_inputs_the_plan_and_the_preactivation(dtype):
    tokens, active, experts = 96, 2, 4
    (x, w13, w2, gates), _ = inputs(tokens, active, experts, 0)
    x, w13, w2 = (jnp.asarray(a, dtype) for a in (x, w13, w2))
    ids = route("uniform", tokens, active, experts, 0)

    def run(x, w13, w2, gates):
        return routed_experts(x, w13, w2, ids, gates, capacity_factor=1.0)

    kept = jax.tree.leaves(jax.eval_shape(lambda *arrays: jax.vjp(run, *arrays)[1], x, w13, w2, gates))
    saved = sum(leaf.size * leaf.dtype.itemsize for leaf in kept)
    copies, slots = tokens * active, capacity(tokens * active, experts, 1.0)
    preactivation = experts * slots * 2 * F * x.dtype.itemsize
    plan = 4 * (experts * slots + 2 * copies + 3 * experts)
    assert preactivation <= saved <= x.nbytes + w13.nbytes + w2.nbytes + gates.nbytes + plan + preactivation


@pytest.mark.parametrize(("tokens", "active", "experts"), [(1, 1, 1), (123, 4, 7), (64, 8, 384)])
def test_expert_counts_ignores_the_id_of_no_expert(tokens, active, experts):
    ids = route("mixed with none", tokens, active, experts, 5)
    expected = np.bincount(ids.ravel(), minlength=experts + 1)[:experts]
    counts = jax.jit(expert_counts, static_argnums=1)(ids, experts)
    assert counts.dtype == jnp.int32
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize("experts", [9, 2**30])
def test_sorting_is_stable_whether_or_not_keys_fit_32_bits(experts):
    ids = np.random.default_rng(0).choice([0, 3, 7, experts], 300).astype(np.int32)
    expert, copy = sort_copies(jnp.asarray(ids), experts)
    order = np.argsort(ids, kind="stable")
    np.testing.assert_array_equal(copy, order)
    np.testing.assert_array_equal(expert, ids[order])


@pytest.mark.parametrize("copies", [1, 60, 3000])
def test_first_positions_are_counts_of_what_comes_before(copies):
    experts = 12
    ids = np.sort(np.random.default_rng(copies).choice([0, 3, 7, 11, experts], copies)).astype(np.int32)
    found = first_positions(jnp.asarray(ids), experts)
    np.testing.assert_array_equal(found, np.concatenate([[0], np.cumsum(np.bincount(ids, minlength=13)[:12])]))
    assert found.dtype == jnp.int32


@pytest.mark.parametrize(
    ("copies", "experts", "factor", "expected"),
    [
        (8192, 32, 1.25, 320),
        (8192, 32, 1.0, 256),
        (100, 8, 1.0, 16),
        (1, 384, 1.25, 8),
        (20, 2, 9.0, 24),
    ],
)
def test_capacity_is_a_multiple_of_eight_and_no_more_than_the_copies_need(copies, experts, factor, expected):
    assert capacity(copies, experts, factor) == expected


def test_wrong_arguments_are_named():
    (x, w13, w2, gates), _ = inputs(6, 2, 3, 0)
    ids = route("uniform", 6, 2, 3, 0)
    with pytest.raises(ValueError, match="w13"):
        routed_experts(x, w13[:, :, 0], w2, ids, gates)
    with pytest.raises(ValueError, match="one dtype"):
        routed_experts(x, w13, jnp.asarray(w2, jnp.bfloat16), ids, gates)
    with pytest.raises(ValueError, match="expert_ids and gates"):
        routed_experts(x, w13, w2, ids[:5], gates[:5])
    with pytest.raises(ValueError, match="positive"):
        routed_experts(x, w13, w2, ids, gates, capacity_factor=0.0)
