"""MLA attention against a literal NumPy softmax (forward) and torch autograd (gradients), both dense and float64."""

from __future__ import annotations

import functools

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
from jax.extend.core import jaxprs_in_params
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from pallas_kernels.mla_attention import AttentionInputs, mla_attention, xla

B, H, DN, DR, DV = 2, 3, 8, 4, 6
SCALE = 0.4
UNROLLED, LOOPED = xla.Tiling(32, unrolled=True), xla.Tiling(32, unrolled=False)
TILINGS = pytest.mark.parametrize("tiling", [UNROLLED, LOOPED], ids=["unrolled", "looped"])
NAMES = ("q_nope", "q_rope", "k_nope", "k_rope", "v")


def shapes(length, batch=B, heads=H):
    head = (batch, heads, length)
    return (*head, DN), (*head, DR), (*head, DN), (batch, length, DR), (*head, DV)


def random_inputs(length, seed=0, batch=B, heads=H):
    """Float32 inputs and the output's cotangent."""
    rng = np.random.default_rng(seed)
    *inputs, dout = (
        rng.normal(size=s).astype(np.float32) for s in (*shapes(length, batch, heads), (batch, heads, length, DV))
    )
    return inputs, dout


def random_exit(kind, length, rng):
    """One row's exit vector."""
    if kind == "causal":
        return np.full(length, length)
    if kind == "all padding":
        return np.arange(length)
    if kind == "tree":
        return tree_exit(length, rng)
    ends = np.append(np.unique(rng.integers(1, length + 1, size=4)), length)
    exit = ends[np.searchsorted(ends, np.arange(length), side="right")]
    if kind == "padded":
        last = rng.integers(0, length)
        exit = np.where(np.arange(length) < last, np.minimum(exit, last), np.arange(length))
    return exit


def tree_exit(length, rng):
    """A depth-first tree: each token continues some token of the path to its predecessor, or starts a tree."""
    exit, path = np.full(length, length), []
    for token in range(length):
        depth = len(path) if rng.random() < 0.8 else rng.integers(0, len(path) + 1)
        for left in path[depth:]:
            exit[left] = token
        path = [*path[:depth], token]
    return exit


def reference_forward(inputs, exit):
    """Row by row from the definition. Returns out, lse and the maximum logit per head, float64."""
    q_nope, q_rope, k_nope, k_rope, v = (np.asarray(x, np.float64) for x in inputs)
    batch, heads, length, _ = q_nope.shape
    out, lse = np.zeros(v.shape), np.full((batch, heads, length), -np.inf)
    max_logit = np.full(heads, -np.inf)
    for b in range(batch):
        for i in range(length):
            seen = [j for j in range(i + 1) if i < exit[b, j]]
            if not seen:
                continue
            logits = np.einsum("hd,hkd->hk", q_nope[b, :, i], k_nope[b][:, seen])
            logits = SCALE * (logits + q_rope[b, :, i] @ k_rope[b, seen].T)
            lse[b, :, i] = np.logaddexp.reduce(logits, axis=-1)
            out[b, :, i] = np.einsum("hk,hkd->hd", np.exp(logits - lse[b, :, i, None]), v[b][:, seen])
            max_logit = np.maximum(max_logit, logits.max(-1))
    return out, lse, max_logit


def reference_gradients(inputs, exit, dout):
    """Torch autograd through dense scores, float64."""
    tensors = [torch.tensor(np.asarray(x, np.float64), requires_grad=True) for x in inputs]
    q_nope, q_rope, k_nope, k_rope, v = tensors
    length = q_nope.shape[2]
    i, j = torch.arange(length)[:, None], torch.arange(length)
    visible = (j <= i) & (i < torch.tensor(np.asarray(exit))[:, None, None, :])
    logits = SCALE * (q_nope @ k_nope.mT + torch.einsum("bhqr,bkr->bhqk", q_rope, k_rope))
    weights = torch.exp(logits - logits.detach().amax(-1, keepdim=True)) * visible
    total = weights.sum(-1, keepdim=True)
    out = weights @ v / torch.where(total == 0, 1.0, total)
    return [x.numpy() for x in torch.autograd.grad(out, tensors, torch.tensor(np.asarray(dout, np.float64)))]


@functools.partial(jax.jit, static_argnums=3)
def run(inputs, exit, dout, tiling):
    def attend(*inputs):
        return xla.mla_attention(AttentionInputs(*inputs, exit), SCALE, tiling)

    out, vjp, stats = jax.vjp(attend, *inputs, has_aux=True)
    return out, stats, vjp(dout)


def assert_close(actual, expected, name, tolerance=1e-5):
    """The largest error of each head, relative to its largest value or to 1, the size of the inputs; -inf is exact."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected)
    assert not np.isnan(actual).any(), f"{name} has NaN"
    np.testing.assert_array_equal(np.isneginf(actual), np.isneginf(expected), err_msg=name)
    actual, expected = (np.where(np.isneginf(x), 0, x) for x in (actual, expected))
    axes = tuple(a for a in range(actual.ndim) if a != 1) if name != "k_rope" else None
    error = np.abs(actual - expected).max(axes) / np.maximum(np.abs(expected).max(axes), 1)
    assert (error <= tolerance).all(), f"{name}: error per head {error}"


def assert_matches(inputs, exit, dout, tiling, tolerance=1e-5):
    out, stats, grads = run(inputs, None if exit is None else jnp.asarray(exit, jnp.int32), dout, tiling)
    if exit is None:
        exit = np.full((out.shape[0], out.shape[2]), out.shape[2])
    expected_out, lse, max_logit = reference_forward(inputs, exit)
    assert_close(out, expected_out, "out", tolerance)
    assert_close(stats.lse, lse, "lse", tolerance)
    assert_close(stats.max_logit[None], max_logit[None], "max_logit", tolerance)
    for name, actual, expected in zip(NAMES, grads, reference_gradients(inputs, exit, dout), strict=True):
        assert_close(actual, expected, name, tolerance)
    return out, stats, grads


KINDS = ("causal", "documents", "padded", "tree", "tree", "all padding")


@settings(max_examples=16, deadline=None, derandomize=True)
@given(
    length=st.sampled_from([1, 7, 130]),
    tiling=st.sampled_from([UNROLLED, LOOPED]),
    kinds=st.lists(st.sampled_from(KINDS), min_size=B, max_size=B),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_mask_matches_the_dense_references(length, tiling, kinds, seed):
    rng = np.random.default_rng(seed)
    exit = np.stack([random_exit(kind, length, rng) for kind in kinds])
    inputs, dout = random_inputs(length, seed)
    assert_matches(inputs, exit, dout, tiling)


@TILINGS
def test_no_exit_is_causal(tiling):
    inputs, dout = random_inputs(64)  # whole blocks; other lengths leave a partial block
    assert_matches(inputs, None, dout, tiling)


@TILINGS
def test_no_visible_token_gives_zero_output_and_gradients(tiling):
    length = 70
    inputs, dout = random_inputs(length)
    exit = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (B, length))
    out, stats, grads = run(inputs, exit, dout, tiling)
    assert (out == 0).all() and (stats.lse == -jnp.inf).all() and (stats.max_logit == -jnp.inf).all()
    for name, grad in zip(NAMES, grads, strict=True):
        assert (grad == 0).all(), name


@TILINGS
def test_max_logit_is_each_heads_own_over_visible_pairs_only(tiling):
    length = 70
    inputs, dout = random_inputs(length)
    inputs[0] *= np.array([1.0, 10.0, 100.0], np.float32)[None, :, None, None]
    exit = np.full((B, length), length)
    exit[:, 33] = 33  # a padding token with an enormous key, as if it were the largest logit of all
    inputs[2][:, :, 33] *= 1e4
    _, stats, _ = run(inputs, jnp.asarray(exit), dout, tiling)
    _, lse, max_logit = reference_forward(inputs, exit)
    assert_close(stats.max_logit[None], max_logit[None], "max_logit")
    assert_close(stats.lse, lse, "lse")
    assert max_logit[2] > 5 * max_logit[1] > 25 * max_logit[0] > 0


@TILINGS
def test_softmax_survives_logits_beyond_the_range_of_exp(tiling):
    inputs, dout = random_inputs(70)
    inputs[0] *= np.float32(100)
    assert_matches(inputs, None, dout, tiling, tolerance=2e-4)


@TILINGS
def test_statistics_carry_no_gradient(tiling):
    inputs, _ = random_inputs(70)

    def total(*inputs):
        stats = xla.mla_attention(AttentionInputs(*inputs, None), SCALE, tiling)[1]
        return stats.lse.sum() + stats.max_logit.sum()

    for grad in jax.jit(jax.grad(total, argnums=range(5)))(*inputs):
        assert (grad == 0).all()


@TILINGS
def test_bfloat16(tiling):
    inputs, dout = random_inputs(70, seed=3)
    half = [jnp.asarray(x, jnp.bfloat16) for x in (*inputs, dout)]
    exit = np.stack([random_exit("tree", 70, np.random.default_rng(b)) for b in range(B)])
    out, stats, grads = assert_matches(half[:5], exit, half[5], tiling, tolerance=2e-2)
    assert out.dtype == jnp.bfloat16 and {grad.dtype for grad in grads} == {jnp.dtype(jnp.bfloat16)}
    assert stats.lse.dtype == jnp.float32 and stats.max_logit.dtype == jnp.float32
    # Logits are summed in float32: only the rounding of the inputs, which the reference shares, is bfloat16.
    assert_close(stats.lse, reference_forward(half[:5], exit)[1], "lse", 1e-5)


@TILINGS
def test_tiles_beyond_the_diagonal_are_not_computed(tiling):
    """NaN beyond the diagonal's block would leak through a weight of zero if its tile were computed."""
    inputs, dout = random_inputs(96)
    inputs[4][:, :, 64:] = np.nan
    assert np.isfinite(run(inputs, None, dout, tiling)[0][:, :, :64]).all()
    inputs, dout = random_inputs(96)
    dout[:, :, :32] = np.nan
    dv = run(inputs, None, dout, tiling)[2][4]
    assert np.isfinite(dv[:, :, 32:]).all()


def test_the_loop_skips_tiles_that_the_exits_hide():
    """Two documents, each of whole blocks: NaN in one does not reach the other, since no tile joins them."""
    exit = jnp.broadcast_to(jnp.where(jnp.arange(128) < 64, 64, 128), (B, 128))
    inputs, dout = random_inputs(128)
    inputs[4][:, :, :64] = np.nan
    assert np.isfinite(run(inputs, exit, dout, LOOPED)[0][:, :, 64:]).all()
    inputs, dout = random_inputs(128)
    dout[:, :, 64:] = np.nan
    assert np.isfinite(run(inputs, exit, dout, LOOPED)[2][4][:, :, :64]).all()


@TILINGS
def test_composes_with_scan_and_checkpoint(tiling):
    """Two layers in a rematerialised scan have the gradients of the two layers written out, taken by torch."""
    inputs, dout = random_inputs(40)
    exit = np.full((B, 40), 40)

    def layers(v):
        def layer(v, _):
            return xla.mla_attention(AttentionInputs(*inputs[:4], v, None), SCALE, tiling)[0], None

        return (jax.lax.scan(jax.checkpoint(layer), v, None, length=2)[0] * dout).sum()

    actual = jax.jit(jax.grad(layers))(inputs[4])
    expected = reference_gradients(inputs, exit, reference_gradients(inputs, exit, dout)[4])[4]
    assert_close(actual, expected, "v")


@TILINGS
def test_runs_inside_shard_map(tiling):
    """Loop carries must vary over the mesh as the inputs do; one device suffices to check that."""
    inputs, dout = random_inputs(70)
    exit = jnp.full((B, 70), 70, jnp.int32)
    spec = jax.P("data")
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(lambda *a: run(*a, tiling)[2], mesh=mesh, in_specs=spec, out_specs=spec)
    for name, actual, expected in zip(
        NAMES, mapped(inputs, exit, dout), run(inputs, exit, dout, tiling)[2], strict=True
    ):
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


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


@TILINGS
def test_the_shared_rope_key_is_never_copied_per_head(tiling):
    """Nothing is broadcast or concatenated to an array of heads with the rope's width, in either direction."""
    length, rope = 96, 5  # a width that no other axis has
    inputs, dout = random_inputs(length)
    inputs[1], inputs[3] = np.ones((B, H, length, rope), np.float32), np.ones((B, length, rope), np.float32)
    jaxpr = jax.make_jaxpr(functools.partial(run, tiling=tiling))(inputs, None, dout).jaxpr
    seen = 0
    for equation in equations(jaxpr):
        output = equation.outvars[0].aval
        seen += equation.primitive.name == "dot_general" and output.shape[-1:] == (rope,)
        if equation.primitive.name == "concatenate":
            assert output.shape[-1] != DN + rope, equation
        if equation.primitive.name == "broadcast_in_dim" and equation.invars[0].aval.shape[-1:] == (rope,):
            assert equation.invars[0].aval.size == output.size, equation
    assert seen, "found no product with the rope's width: the search is blind"


def test_public_function_takes_the_tiling_of_the_length(monkeypatch):
    monkeypatch.setattr(xla, "UNROLL_UP_TO", 64)
    monkeypatch.setattr(xla, "LOOPED_BLOCK", 32)
    assert xla.default_tiling(64).unrolled and not xla.default_tiling(65).unrolled
    inputs, _ = random_inputs(65)
    exit = np.stack([random_exit("tree", 65, np.random.default_rng(b)) for b in range(B)])
    out, stats = mla_attention(*inputs, exit=jnp.asarray(exit), scale=SCALE)
    expected, lse, _ = reference_forward(inputs, exit)
    assert_close(out, expected, "out")
    assert_close(stats.lse, lse, "lse")


def test_wrong_shapes_are_named():
    inputs, _ = random_inputs(8)
    with pytest.raises(ValueError, match="k_rope has shape"):
        mla_attention(*inputs[:3], inputs[3][:, :7], inputs[4], scale=SCALE)
    with pytest.raises(ValueError, match="exit has shape"):
        mla_attention(*inputs, exit=jnp.zeros((B, 9), jnp.int32), scale=SCALE)
