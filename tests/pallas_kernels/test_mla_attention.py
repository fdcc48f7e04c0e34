"""MLA attention of every backend against a literal NumPy softmax and torch autograd, both dense and float64."""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.mla_attention import AttentionInputs, mla_attention, mosaic, xla
from tests.jaxpr import equations
from tests.pallas_kernels.attention_oracle import (
    DN,
    KINDS,
    NAMES,
    SCALE,
    B,
    H,
    assert_close,
    exits,
    random_inputs,
    reference_forward,
    reference_gradients,
    shapes,
)


class Backend(NamedTuple):
    """An implementation with its tokens of a block; its sequences end inside their third block."""

    attend: Callable
    block: int
    heads: int = H

    @property
    def length(self):
        return 2 * self.block + self.block // 3


def plain(block, unrolled):
    return Backend(lambda inputs: xla.mla_attention(inputs, SCALE, xla.Tiling(block, unrolled)), block)


def kernels(block, heads):
    attend = lambda inputs: mosaic.mla_attention(inputs, SCALE, block=block, interpret=True)  # noqa: E731
    return Backend(attend, block, heads)


BACKENDS = {
    "unrolled": plain(32, True),
    "looped": plain(32, False),
    "mosaic": kernels(128, 6),  # three heads per step, so two groups of heads
    "mosaic 256": kernels(256, 5),
}
each_backend = pytest.mark.parametrize("backend", ["unrolled", "looped", "mosaic"])


def causal(length):
    return np.full((B, length), length)


@functools.partial(jax.jit, static_argnums=3)
def run(inputs, exit, dout, backend):
    """Output, statistics and gradients; one program for all exits of a shape."""
    exit = None if exit is None else jnp.asarray(exit, jnp.int32)
    attend = lambda *inputs: BACKENDS[backend].attend(AttentionInputs(*inputs, exit))  # noqa: E731
    out, vjp, stats = jax.vjp(attend, *inputs, has_aux=True)
    return out, stats, vjp(dout)


def problem(backend, length=None, **options):
    """Inputs and the output's cotangent, by default of the backend's length and heads."""
    own = BACKENDS[backend]
    return random_inputs(length or own.length, **{"heads": own.heads, **options})


def assert_matches(inputs, exit, dout, backend, tolerance=1e-5):
    out, stats, grads = run(inputs, exit, dout, backend)
    exit = causal(out.shape[2]) if exit is None else exit
    expected_out, lse, max_logit = reference_forward(inputs, exit)
    assert_close(out, expected_out, "out", tolerance)
    assert_close(stats.lse, lse, "lse", tolerance)
    assert_close(stats.max_logit[None], max_logit[None], "max_logit", tolerance)
    for name, actual, expected in zip(NAMES, grads, reference_gradients(inputs, exit, dout), strict=True):
        assert_close(actual, expected, name, tolerance)
    return out, stats, grads


@pytest.mark.parametrize(
    ("backend", "length", "heads"),
    [
        *((backend, BACKENDS[backend].length, BACKENDS[backend].heads) for backend in ("unrolled", "looped", "mosaic")),
        ("unrolled", 1, H),
        ("looped", 7, H),
        ("mosaic", 1, 1),
        pytest.param("mosaic 256", 260, 5, marks=pytest.mark.slow),
    ],
)
@settings(max_examples=5)
@given(kinds=st.lists(st.sampled_from(KINDS), min_size=B, max_size=B), seed=st.integers(0, 2**32 - 1))
def test_any_mask_matches_the_dense_references(backend, length, heads, kinds, seed):
    """One token, lengths that divide nothing, two sizes of the kernels' block, and one or three heads per step."""
    inputs, dout = random_inputs(length, seed, heads=heads)
    assert_matches(inputs, exits(kinds, length, seed), dout, backend)


@each_backend
def test_whole_blocks_without_exit_are_causal(backend):
    inputs, dout = problem(backend, 2 * BACKENDS[backend].block, heads=2)
    assert_matches(inputs, None, dout, backend)


@each_backend
def test_no_visible_token_gives_zero_output_and_gradients(backend):
    inputs, dout = problem(backend)
    exit = np.broadcast_to(np.arange(dout.shape[2]), (B, dout.shape[2]))
    out, stats, grads = run(inputs, exit, dout, backend)
    assert (out == 0).all() and (stats.lse == -jnp.inf).all() and (stats.max_logit == -jnp.inf).all()
    for name, grad in zip(NAMES, grads, strict=True):
        assert (grad == 0).all(), name


@each_backend
@pytest.mark.parametrize("place", ["last block", "first block"])
def test_max_logit_is_each_heads_own_over_visible_pairs(backend, place):
    """The largest visible logit lies in a given block of one row of the batch, a larger one is hidden."""
    inputs, dout = problem(backend)
    block, length, heads = BACKENDS[backend].block, dout.shape[2], BACKENDS[backend].heads
    query, key = (length - 2, block + block // 2) if place == "last block" else (block // 2, 3)
    inputs[2][0, :, key] = 3 * np.sign(inputs[0][0, :, query])
    inputs[0][0, :, query] *= (10 * 3.0 ** np.arange(heads)).astype(np.float32)[:, None]
    inputs[2][:, :, block + 1] *= 1e4
    exit = causal(length)
    exit[:, block + 1] = block + 1  # padding
    _, stats, _ = run(inputs, exit, dout, backend)
    _, lse, max_logit = reference_forward(inputs, exit)
    assert_close(stats.max_logit[None], max_logit[None], "max_logit")
    assert_close(stats.lse, lse, "lse")
    assert max_logit[-1] > 5 * max_logit[0] > 0


@each_backend
def test_softmax_survives_logits_beyond_the_range_of_exp(backend):
    inputs, dout = problem(backend)
    inputs[0] *= np.float32(30)
    _, stats, _ = assert_matches(inputs, causal(dout.shape[2]), dout, backend, tolerance=2e-4)
    assert stats.max_logit.min() > 100


@pytest.mark.parametrize("backend", ["looped", "mosaic"])
def test_statistics_carry_no_gradient(backend):
    inputs, _ = problem(backend, 1, heads=1)

    def total(*inputs):
        stats = BACKENDS[backend].attend(AttentionInputs(*inputs, None))[1]
        return stats.lse.sum() + stats.max_logit.sum()

    for grad in jax.jit(jax.grad(total, argnums=range(5)))(*inputs):
        assert (grad == 0).all()


@pytest.mark.parametrize("backend", [pytest.param("unrolled", marks=pytest.mark.slow), "looped", "mosaic"])
def test_bfloat16(backend):
    inputs, dout = problem(backend, seed=3, heads=2)
    half = [jnp.asarray(x, jnp.bfloat16) for x in (*inputs, dout)]
    exit = exits(("tree", "documents"), dout.shape[2])
    out, stats, grads = assert_matches(half[:5], exit, half[5], backend, tolerance=2e-2)
    assert out.dtype == jnp.bfloat16 and {grad.dtype for grad in grads} == {jnp.dtype(jnp.bfloat16)}
    assert stats.lse.dtype == jnp.float32 and stats.max_logit.dtype == jnp.float32
    # Logits are summed in float32: only the rounding of the inputs, which the reference shares, is bfloat16.
    assert_close(stats.lse, reference_forward(half[:5], exit)[1], "lse", 1e-5)


@pytest.mark.parametrize(
    ("backend", "hidden"),
    [  # Unrolled tiles are those of the causal triangle, whatever the exits.
        *((backend, "the future") for backend in ("unrolled", "looped", "mosaic")),
        *((backend, "another document") for backend in ("looped", "mosaic")),
    ],
)
def test_tiles_without_a_visible_pair_are_not_computed(backend, hidden):
    """NaN would leak through a weight of zero if its tile were computed; documents have whole blocks."""
    length = BACKENDS[backend].length
    first = np.arange(length) < BACKENDS[backend].block
    exit, bad = causal(length), ~first
    if hidden == "another document":
        exit[:, first], bad = first.sum(), first
    inputs, dout = problem(backend)
    inputs[4][:, :, bad] = np.nan
    assert np.isfinite(run(inputs, exit, dout, backend)[0][:, :, ~bad]).all()
    inputs, dout = problem(backend)
    dout[:, :, ~bad] = np.nan
    assert np.isfinite(run(inputs, exit, dout, backend)[2][4][:, :, bad]).all()


def test_composes_with_scan_and_checkpoint():
    """Two layers in a rematerialised scan have the gradients of the two layers written out, taken by torch."""
    inputs, dout = random_inputs(40)

    def layers(v):
        def layer(v, _):
            return BACKENDS["looped"].attend(AttentionInputs(*inputs[:4], v, None))[0], None

        return (jax.lax.scan(jax.checkpoint(layer), v, None, length=2)[0] * dout).sum()

    actual = jax.jit(jax.grad(layers))(inputs[4])
    expected = reference_gradients(inputs, causal(40), reference_gradients(inputs, causal(40), dout)[4])[4]
    assert_close(actual, expected, "v")


def test_runs_inside_shard_map():
    """Loop carries must vary over the mesh as the inputs do; one device suffices to check that."""
    inputs, dout = problem("looped")
    exit = jnp.asarray(causal(dout.shape[2]), jnp.int32)
    spec = jax.P("data")
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(lambda *a: run(*a, "looped")[2], mesh=mesh, in_specs=spec, out_specs=spec)
    grads = zip(NAMES, mapped(inputs, exit, dout), run(inputs, exit, dout, "looped")[2], strict=True)
    for name, actual, expected in grads:
        assert_close(actual, expected, name)


def compile_training(length, heads=2):
    def loss(*inputs):
        out, stats = mla_attention(*inputs[:5], exit=inputs[5], scale=SCALE)
        return out.sum(), stats

    arguments = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes(length, 1, heads)]
    arguments.append(jax.ShapeDtypeStruct((1, length), jnp.int32))
    return jax.jit(jax.grad(loss, argnums=range(5), has_aux=True)).lower(*arguments).compile()


def test_long_sequences_take_linear_memory_and_a_program_of_constant_size():
    short, long = compile_training(4096), compile_training(8192)
    short_bytes, long_bytes = (c.memory_analysis().temp_size_in_bytes for c in (short, long))
    assert long_bytes < 8192 * 8192 * 4 / 20
    assert long_bytes < 2.1 * short_bytes
    assert len(long.as_text().splitlines()) <= 1.02 * len(short.as_text().splitlines())


def test_unrolled_blocks_share_their_buffers():
    """Forward and backward hold less than one score matrix, though together their tiles are more than two."""
    temporary = compile_training(1024, heads=4).memory_analysis().temp_size_in_bytes
    assert temporary < 4 * 1024 * 1024 * 4


@pytest.mark.parametrize("backend", ["unrolled", "looped"])
def test_the_shared_rope_key_is_never_copied_per_head(backend):
    """Nothing is broadcast or concatenated to an array of heads with the rope's width, in either direction."""
    length, rope = 96, 5  # a width that no other axis has
    inputs, dout = random_inputs(length)
    inputs[1], inputs[3] = np.ones((B, H, length, rope), np.float32), np.ones((B, length, rope), np.float32)
    jaxpr = jax.make_jaxpr(functools.partial(run, backend=backend))(inputs, None, dout).jaxpr
    seen = 0
    for equation in equations(jaxpr):
        output = equation.outvars[0].aval
        seen += equation.primitive.name == "dot_general" and output.shape[-1:] == (rope,)
        if equation.primitive.name == "concatenate":
            assert output.shape[-1] != DN + rope, equation
        if equation.primitive.name == "broadcast_in_dim" and equation.invars[0].aval.shape[-1:] == (rope,):
            assert equation.invars[0].aval.size == output.size, equation
    assert seen, "found no product with the rope's width: the search is blind"


def test_wrong_arguments_are_named():
    inputs, _ = random_inputs(8)
    with pytest.raises(ValueError, match="k_rope has shape"):
        mla_attention(*inputs[:3], inputs[3][:, :7], inputs[4], scale=SCALE)
    with pytest.raises(ValueError, match="exit has shape"):
        mla_attention(*inputs, exit=jnp.zeros((B, 9), jnp.int32), scale=SCALE)
    with pytest.raises(ValueError, match="impl is one of"):
        mla_attention(*inputs, scale=SCALE, impl="mosaic")
