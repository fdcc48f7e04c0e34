"""Newton-Schulz against float64 NumPy, and the properties that make it usable on stacks."""

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import newton_schulz as ns
from pallas_kernels.newton_schulz.stacks import orthogonalize_batch
from pallas_kernels.newton_schulz.xla import orthogonalize_one_by_one

MUON = ns.coefficients("muon", 5)


orthogonalized = jax.jit(lambda x: ns.newton_schulz(x, MUON))  # compiled once per shape


def reference(x, coefficients):
    """Newton-Schulz of one matrix in float64."""
    x = np.asarray(x, np.float64)
    x = x / (np.sqrt((x**2).sum()) + 1e-7)
    for a, b, c in coefficients:
        gram = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
        poly = b * gram + c * gram @ gram
        x = a * x + (poly @ x if x.shape[0] <= x.shape[1] else x @ poly)
    return x


@pytest.mark.parametrize(
    ("shape", "preset"), [((32, 32), "muon"), ((16, 48), "polar_express"), ((48, 16), "muon"), ((64, 100), "muon")]
)
def test_agrees_with_float64(shape, preset):
    x = np.random.default_rng(0).standard_normal((3, 2, *shape)).astype(np.float32)
    coefficients = ns.coefficients(preset, 5)
    got = np.asarray(jax.jit(lambda x: ns.newton_schulz(x, coefficients))(x))
    expected = np.stack([[reference(m, coefficients) for m in row] for row in x])
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, atol=1e-5, rtol=0)


def test_ill_conditioned_matrices_stay_precise():
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.standard_normal((n, 128)))[0] for n in (128, 256))
    x = ((u / np.arange(1, 129)) @ v.T).astype(np.float32)
    np.testing.assert_allclose(ns.newton_schulz(jnp.asarray(x), MUON), reference(x, MUON), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("preset", "low", "high"), [("muon", 0.65, 1.25), ("polar_express", 0.8, 1.2)])
def test_singular_values_go_to_one(preset, low, high):
    x = np.random.default_rng(0).standard_normal((24, 64)).astype(np.float32)
    s = np.linalg.svd(np.asarray(ns.newton_schulz(jnp.asarray(x), ns.coefficients(preset, 5))), compute_uv=False)
    assert low < s.min() and s.max() < high


def test_eight_polar_express_steps_orthogonalise():
    x = np.random.default_rng(0).standard_normal((24, 64)).astype(np.float32)
    y = np.asarray(ns.newton_schulz(jnp.asarray(x), ns.coefficients("polar_express", 8)))
    u, _, vt = np.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(y, u @ vt, atol=1e-4)


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(st.floats(-2, 6), st.integers(0, 99))
def test_stacking_scaling_and_transposing_change_nothing(exponent, seed):
    x = np.random.default_rng(seed).standard_normal((3, 4, 6)).astype(np.float32)
    y = orthogonalized(x)
    np.testing.assert_allclose(y, np.stack([orthogonalized(m) for m in x]), atol=1e-5)
    np.testing.assert_allclose(y, orthogonalized(np.float32(10**exponent) * x), atol=1e-4)
    np.testing.assert_allclose(y, orthogonalized(x.swapaxes(1, 2)).swapaxes(1, 2), atol=1e-5)


def test_both_platform_paths_agree():
    """The batched path of accelerators against that of CPUs; stacks differ in orientation and length."""
    rng = np.random.default_rng(0)
    stacks = [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((3, 6, 9), (1, 9, 6), (2, 6, 9))]
    one_by_one = orthogonalize_one_by_one(stacks, MUON, jnp.float32)
    batched = orthogonalize_batch(stacks, MUON, jnp.float32)
    for a, b, x in zip(one_by_one, batched, stacks, strict=True):
        assert a.shape == x.shape
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_platforms_get_the_program_that_suits_them():
    """Two-dimensional float32 products on a CPU, batched bfloat16 ones on an accelerator; decided when compiling."""
    x = jax.ShapeDtypeStruct((4, 8, 16), jnp.float32)
    traced = jax.jit(lambda x: ns.newton_schulz(x, MUON)).trace(x)
    cpu, tpu = (traced.lower(lowering_platforms=(platform,)).as_text() for platform in ("cpu", "tpu"))
    assert "batching_dims" not in cpu and "bf16" not in cpu
    assert "batching_dims" in tpu and "bf16" in tpu


def test_bfloat16_products_keep_a_float32_norm():
    """Summing 65,536 squares in bfloat16 would stall at 256 and leave the matrix far too large."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((128, 512)), jnp.float32)
    y, exact = (np.asarray(ns.newton_schulz(x, MUON, dtype)) for dtype in (jnp.bfloat16, jnp.float32))
    assert y.dtype == np.float32
    assert np.linalg.norm(y - exact) < 0.05 * np.linalg.norm(exact)


@pytest.mark.parametrize("impl", ["xla", "interpret"])
def test_zero_stays_zero(impl):
    assert not np.asarray(ns.newton_schulz(jnp.zeros((2, 3, 5)), MUON, impl=impl)).any()


def test_wrong_arguments_are_named():
    for preset, steps in (("muon", 0), ("polar_express", 9), ("quintic", 5)):
        with pytest.raises(ValueError, match=r"step|preset"):
            ns.coefficients(preset, steps)
    for malformed in ((), ((1.0, 2.0),)):
        with pytest.raises(ValueError, match="per step"):
            ns.newton_schulz(jnp.zeros((2, 2)), malformed)
    with pytest.raises(ValueError, match="impl is one of"):
        ns.newton_schulz(jnp.zeros((2, 2)), MUON, impl="triton")


def test_presets_have_one_triple_per_step():
    assert ns.coefficients("muon", 7) == ((3.4445, -4.7750, 2.0315),) * 7
    assert ns.coefficients("polar_express", 8)[-1] == (1.875, -1.25, 0.375)
    assert [len(ns.coefficients("polar_express", k)) for k in (1, 5, 8)] == [1, 5, 8]
    assert ns.coefficients("polar_express", 8)[:3] == ns.coefficients("polar_express", 3)
