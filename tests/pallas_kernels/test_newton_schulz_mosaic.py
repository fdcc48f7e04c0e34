"""The TPU kernel of Newton-Schulz in interpret mode, against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import newton_schulz as ns
from pallas_kernels.newton_schulz import mosaic
from tests.pallas_kernels.test_newton_schulz import MUON, reference


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def whole_numbers(seed, *shape):
    """Float32 whose products and sums are exact, in whatever order a processor adds them; bfloat16 holds not all."""
    rng = np.random.default_rng(seed)
    small, large = rng.integers(-8, 9, shape), rng.choice([-1, 1], shape) * rng.integers(257, 512, shape)
    return np.where(rng.random(shape) < 1 / 64, large, small).astype(np.float32)


def exact_product(x):
    wide = x.astype(np.float64)
    return wide @ wide.swapaxes(1, 2)


@pytest.mark.parametrize("shape", [(2, 896, 256), (1, 1536, 128)])
def test_symmetric_product(shape):
    """28 tiles of 128 and 3 of 768; several steps along the contracted side come from the second."""
    x = whole_numbers(0, *shape)
    np.testing.assert_array_equal(mosaic.symmetric_product(jnp.asarray(x), interpret=True), exact_product(x))


def test_symmetric_product_adds_the_matrix_itself():
    x = whole_numbers(1, 2, 896, 896)
    x = x + x.swapaxes(1, 2)
    got = mosaic.symmetric_product(jnp.asarray(x), (2.0, -30.0), interpret=True)
    np.testing.assert_array_equal(got, 2.0 * exact_product(x) - 30.0 * x)


def test_contracts_in_several_steps():
    """1,152 columns: 9 x 128, of which no more than 1,024 are contracted at a time."""
    assert mosaic._depth(1152) < 1152 and mosaic._depth(7168) == 1024
    x = whole_numbers(2, 1, 128, 1152)
    np.testing.assert_array_equal(mosaic.symmetric_product(jnp.asarray(x), interpret=True), exact_product(x))


@pytest.mark.parametrize(("count", "rows", "columns"), [(2, 200, 130), (1, 7, 300)])
def test_any_shape_agrees_with_float64(count, rows, columns):
    x = normal(0, count, rows, columns)
    got = jax.jit(lambda x: ns.newton_schulz(x, MUON, impl="interpret"))(x)
    expected = np.stack([reference(matrix, MUON) for matrix in x])
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_bfloat16_is_as_close_to_float64_as_plain_jax():
    x = normal(3, 2, 128, 512)
    exact = np.stack([reference(matrix, MUON) for matrix in x])
    errors = {
        impl: np.linalg.norm(np.asarray(ns.newton_schulz(jnp.asarray(x), MUON, jnp.bfloat16, impl)) - exact)
        for impl in ("xla", "interpret")
    }
    assert errors["interpret"] < 1.5 * errors["xla"] < 0.1 * np.linalg.norm(exact)


def test_a_tpu_gets_the_kernel_and_others_do_not():
    x = jax.ShapeDtypeStruct((2, 128, 256), jnp.float32)
    traced = {
        impl: jax.jit(lambda x, impl=impl: ns.newton_schulz(x, MUON, impl=impl)).trace(x) for impl in ("auto", "xla")
    }
    has_kernel = {
        (impl, platform): "symmetric_product" in one.lower(lowering_platforms=(platform,)).as_text()
        for impl, one in traced.items()
        for platform in ("cpu", "cuda", "tpu")
    }
    assert [key for key, found in has_kernel.items() if found] == [("auto", "tpu")]


def test_cost_counts_the_tiles_below_the_diagonal():
    """K2's expert: 4 x 4 tiles of 512, ten of them on or below the diagonal."""
    cost = mosaic.cost(1, 2048, 7168, 1, 2)
    assert cost.flops == 2 * (10 * 512 * 512 * (7168 + 2048) + 2048 * 2048 * 7168)
    assert cost.flops < 0.8 * (4 * 2048**2 * 7168 + 2 * 2048**3)
