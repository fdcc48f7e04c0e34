"""The Newton-Schulz iteration in plain JAX."""

from __future__ import annotations

import functools

import jax
from jax import Array, lax
import jax.numpy as jnp

from pallas_kernels.newton_schulz.polynomials import Coefficients

EPSILON = 1e-7  # added to the Frobenius norm


def orthogonalize_one_by_one(stacks: list[Array], steps: Coefficients, dtype: jax.typing.DTypeLike) -> list[Array]:
    """Orthogonalises one matrix after the other, the form that suits a CPU; takes and returns ``[B, n, m]`` arrays.

    A matrix stays in cache for all its steps, and XLA:CPU's plain products are faster than its batched ones. Measured
    on [288, 128, 256] float32 with two threads: 310 ms against 610 ms for batched products.
    """

    def orthogonalize_matrix(x: Array) -> Array:
        if x.shape[-2] <= x.shape[-1]:
            return orthogonalize(x, steps, dtype, gram_runs=True)
        # The barriers keep XLA from folding the transpositions into products, which would make those slower.
        wide_NM = lax.optimization_barrier(x.swapaxes(-1, -2))
        return lax.optimization_barrier(orthogonalize(wide_NM, steps, dtype, gram_runs=True)).swapaxes(-1, -2)

    return [
        orthogonalize_matrix(x[0])[None] if len(x) == 1 else lax.map(orthogonalize_matrix, lax.optimization_barrier(x))
        for x in stacks
    ]


def orthogonalize(x_NM: Array, steps: Coefficients, dtype: jax.typing.DTypeLike, gram_runs: bool = False) -> Array:
    """Normalises matrices and applies all steps.

    Args:
        x_NM: ``[..., N, M]`` with N at most M, any float dtype.
        steps: coefficients of the steps.
        dtype: dtype of the products.
        gram_runs: whether to use the form with fewer FLOPs where it saves any; for a single matrix.

    Returns:
        float32 ``[..., N, M]``.
    """
    x_NM = normalized(x_NM, dtype)
    if gram_runs and dtype == jnp.float32 and x_NM.shape[-1] >= 2 * x_NM.shape[-2]:
        return _iterate_in_runs(x_NM, steps)
    # Sums and coefficients are float32, because bfloat16 coefficients would lose a digit. HIGHEST because accelerators
    # otherwise multiply float32 in lower precision.
    highest = lax.Precision.HIGHEST if dtype == jnp.float32 else None
    product = functools.partial(jnp.matmul, precision=highest, preferred_element_type=jnp.float32)

    def step(x_NM: Array, abc: Array) -> tuple[Array, None]:
        a, b, c = abc
        gram_NN = product(x_NM, x_NM.swapaxes(-1, -2))
        rounded_NN = gram_NN.astype(dtype)
        poly_NN = (b * gram_NN + c * product(rounded_NN, rounded_NN)).astype(dtype)
        return (a * x_NM + product(poly_NN, x_NM)).astype(dtype), None

    return lax.scan(step, x_NM, jnp.asarray(steps, jnp.float32))[0].astype(jnp.float32)


def normalized(x: Array, dtype: jax.typing.DTypeLike) -> Array:
    """Divides every matrix ``[..., n, m]`` by its Frobenius norm in float32, then casts to ``dtype``."""
    x = x.astype(jnp.float32)
    norm = jnp.sqrt(jnp.sum(jnp.square(x), axis=(-2, -1), keepdims=True))
    return (x / (norm + EPSILON)).astype(dtype)


def _iterate_in_runs(x_NM: Array, steps: Coefficients) -> Array:
    """The same iteration on one float32 matrix, with fewer FLOPs if M ≥ 2N: 12 % at M = 2N, a third at M = 4N.

    Every step multiplies X by a polynomial P of A = X Xᵀ, and P A P is the next A; so a run of steps works on N×N
    matrices and multiplies X once. Runs are short because rounding errors grow along them: in float32, two and three
    steps are as exact as the plain iteration (≤ 1e-5 on ill-conditioned matrices), five in one run are not (1e-4), and
    in bfloat16 runs diverge.
    """
    cuts = list(range(0, max(len(steps) - 1, 1), 2))
    for start, stop in zip(cuts, [*cuts[1:], len(steps)], strict=True):
        gram_NN = x_NM @ x_NM.T
        total_NN = None
        for number, (a, b, c) in enumerate(steps[start:stop], start + 1):
            poly_NN = b * gram_NN + c * (gram_NN @ gram_NN) + a * jnp.eye(len(x_NM))
            total_NN = poly_NN if total_NN is None else poly_NN @ total_NN
            if number < stop:
                gram_NN = poly_NN @ (poly_NN @ gram_NN)
        x_NM = total_NN @ x_NM
    return x_NM
