"""FP8 copies of activations against NumPy, and their use in the experts' backward pass."""

from functools import partial
import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.routed_experts import kept_rows, routed_experts
from pallas_kernels.routed_experts.fp8_residuals import dequantize, from_fp8, quantize
from pallas_kernels.routed_experts.mosaic import ExpertTiles
from tests.pallas_kernels.expert_oracle import NAMES, D, F, inputs, route
from tests.pallas_kernels.test_routed_experts_mosaic import WEIGHTS

TILES = ExpertTiles(8, 4, 4, 2, 4, WEIGHTS)


def oracle(x):
    """Tile by tile: scaled so that the largest value is 448, rounded by ml_dtypes, scaled back."""
    x = np.asarray(x, np.float64)
    out = np.zeros_like(x)
    for start in range(0, x.shape[-1], 128):
        tile = x[..., start : start + 128]
        scale = np.abs(tile).max(-1, keepdims=True) / 448
        scale = np.where(scale == 0, 1, scale)
        out[..., start : start + 128] = (tile / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale
    return out


@pytest.mark.parametrize("shape", [(3, 5, 300), (7, 128), (4, 256), (6, 20), (1, 129)])
def test_a_copy_is_that_of_numpy(shape):
    x = np.random.default_rng(0).standard_normal(shape) * np.exp(np.random.default_rng(1).normal(0, 4, shape))
    x = x.astype(np.float32)
    stored = jax.jit(quantize)(x)
    tiles = -(-shape[-1] // 128)
    # One axis: of ``[..., tiles, R]`` a TPU would keep tiles last, padded to 128.
    assert stored.values.shape == shape and stored.scales.shape == (math.prod(shape[:-1]) * tiles,)
    assert stored.values.dtype == jnp.float8_e4m3fn and stored.scales.dtype == jnp.float32
    got, expected = np.asarray(dequantize(stored, jnp.float32)), oracle(x)
    # A value halfway between two FP8 numbers may round either way.
    assert np.mean(np.abs(got - expected) > 1e-5 * np.abs(expected)) < 1e-3
    assert np.all(np.abs(got - x) <= np.abs(x) / 16 + np.abs(x).max(-1, keepdims=True) * 2.0**-9 / 448)


def test_zeros_stay_zeros_and_a_nan_stays_in_its_row():
    x = np.ones((3, 140), np.float32)
    x[0], x[1, 3] = 0, np.nan
    got = np.asarray(dequantize(quantize(x), jnp.float32))
    assert (got[0] == 0).all() and (got[2] == 1).all() and np.isnan(got[1, 3]) and (got[1, 128:] == 1).all()


def test_a_function_is_exact_and_its_gradient_that_at_the_copy():
    rng = np.random.default_rng(0)
    x, w, dy = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 130), (130, 4), (9, 4)))

    def function(x, w):
        return jnp.tanh(x) @ w

    y, pullback = jax.vjp(lambda x, w: from_fp8(function, x, w, "name"), x, w)
    np.testing.assert_array_equal(y, function(x, w))
    for got, expected in zip(pullback(dy), jax.vjp(function, oracle(x).astype(np.float32), w)[1](dy), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@partial(jax.jit, static_argnames=("impl", "store_fp8"))
def experts(arrays, dy, ids, impl, store_fp8):
    def run(x, w13, w2, gates):
        tiles = {"_tiles": TILES} if impl == "interpret" else {"capacity_factor": 8.0}
        return routed_experts(x, w13, w2, ids, gates, impl=impl, store_fp8=store_fp8, **tiles)

    y, pullback = jax.vjp(run, *arrays)
    return y, pullback(dy)


@pytest.mark.parametrize("name", ["expert_input", "expert_gate_up"])
def test_experts_read_their_copies(name):
    """The kernels and plain JAX agree, on the same copies; tokens without an expert may hold NaN."""
    arrays, dy = inputs(20, 3, 4, seed=0)
    ids = route("mixed with none", 20, 3, 4, seed=0)
    x = np.where(np.all(ids == 4, axis=1)[:, None], np.nan, arrays[0])
    arrays = (x, *arrays[1:])
    exact_y, exact = experts(arrays, dy, ids, "xla", ())
    y, grads = experts(arrays, dy, ids, "xla", (name,))
    kernel_y, kernel_grads = experts(arrays, dy, ids, "interpret", (name,))
    np.testing.assert_array_equal(y, exact_y)
    np.testing.assert_allclose(kernel_y, y, atol=1e-5)
    for what, got, kernel, before in zip(NAMES, grads, kernel_grads, exact, strict=True):
        error = np.linalg.norm(got - before) / np.linalg.norm(before)
        np.testing.assert_allclose(kernel, got, atol=1e-4 * np.abs(got).max(), err_msg=what)
        assert 0.01 < error < 0.06 if what == "w13" or name == "expert_gate_up" else error < 1e-6, (what, error)


def test_other_names_are_refused():
    arrays, _ = inputs(5, 1, 2, seed=0)
    with pytest.raises(ValueError, match="store_fp8 takes 'expert_input' and 'expert_gate_up'"):
        routed_experts(*arrays[:3], np.zeros((5, 1), np.int32), arrays[3], store_fp8=("expert_plan",))


def test_rows_are_those_of_the_buffers():
    """Plain JAX has slots for 1.06 times the mean, in multiples of 8; the kernels a row per copy, in whole tiles."""
    assert kept_rows(100, 4, (8, F, D), jnp.float32, impl="xla")[0] == 8 * 56
    assert kept_rows(1000, 4, (8, 128, 256), jnp.bfloat16, impl="pallas", max_copies=900)[0] == 1024
