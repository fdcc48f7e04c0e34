"""Newton-Schulz orthogonalisation of stacks of matrices; chooses the implementation for the platform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import itertools
import math

import jax
from jax import Array, lax
import jax.numpy as jnp

from pallas_kernels.implementation import Impl, check_implementation
from pallas_kernels.newton_schulz import mosaic, xla
from pallas_kernels.newton_schulz.polynomials import Coefficients


def newton_schulz(
    x: Array, coefficients: Coefficients, dtype: jax.typing.DTypeLike | None = None, impl: Impl = "auto"
) -> Array:
    """Orthogonalises every matrix of a stack: U p(S) Vᵀ with p(S) near 1, for the singular values S.

    ``X = x / (‖x‖_F + 1e-7)``; each step computes ``A = X Xᵀ; X = a X + (b A + c A²) X``, on the transposed matrix if
    it has more rows than columns (K. Jordan's Muon; Moonlight, arXiv:2502.16982, section 2.1). A zero matrix stays
    zero.

    Args:
        x: ``[..., n, m]``, any float dtype.
        coefficients: one (a, b, c) for each step.
        dtype: dtype of the matrix products; None is float32 on a CPU and bfloat16 elsewhere, by the platform that the
            computation is compiled for.
        impl: ``xla`` for plain JAX, ``pallas`` for the TPU kernel, ``interpret`` to run the kernel on any machine;
            ``auto`` is the kernel where the computation is compiled for a TPU, else plain JAX.

    Returns:
        float32 ``[..., n, m]``.

    Raises:
        ValueError: if ``x`` has fewer than two axes, a step has not three coefficients, or ``impl`` is unknown.
    """
    return newton_schulz_stacks([x], coefficients, dtype, impl)[0]


def newton_schulz_stacks(
    stacks: Sequence[Array],
    coefficients: Coefficients,
    dtype: jax.typing.DTypeLike | None = None,
    impl: Impl = "auto",
) -> list[Array]:
    """Applies ``newton_schulz`` to several stacks whose matrices have one shape, up to transposition.

    Accelerators compute all of them in one batched call. A CPU computes one matrix after the other, without the copies
    that stacking costs. The result is the same.

    Args:
        stacks: arrays ``[..., n, m]`` or ``[..., m, n]``.
        coefficients: as in ``newton_schulz``.
        dtype: as in ``newton_schulz``.
        impl: as in ``newton_schulz``.

    Returns:
        float32 arrays with the shapes of ``stacks``.

    Raises:
        ValueError: as ``newton_schulz``, or if the matrices have different shapes.
    """
    if not coefficients or any(len(step) != 3 for step in coefficients):
        raise ValueError(f"Newton-Schulz needs (a, b, c) per step, not {coefficients}")
    if any(x.ndim < 2 for x in stacks) or len({tuple(sorted(x.shape[-2:])) for x in stacks}) > 1:
        raise ValueError(f"need matrices of one shape, not {[x.shape for x in stacks]}")
    flat = [x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]) for x in stacks]
    if not stacks:
        return []
    steps = tuple(tuple(float(c) for c in step) for step in coefficients)
    results = _implementation(impl, steps, dtype)(flat)
    return [result.reshape(x.shape) for result, x in zip(results, stacks, strict=True)]


def _implementation(
    impl: Impl, steps: Coefficients, dtype: jax.typing.DTypeLike | None
) -> Callable[[list[Array]], list[Array]]:
    """Function from stacks to stacks. ``auto`` is resolved when XLA compiles, since nothing is differentiated here."""
    check_implementation(impl)
    on_cpu = functools.partial(xla.orthogonalize_one_by_one, steps=steps, dtype=dtype or jnp.float32)
    batched = functools.partial(orthogonalize_batch, steps=steps, dtype=dtype or jnp.bfloat16)
    if impl == "interpret":
        return functools.partial(orthogonalize_batch, steps=steps, dtype=dtype or jnp.float32, kernel="interpret")
    if impl == "pallas":
        return functools.partial(batched, kernel="pallas")
    tpu = {"tpu": functools.partial(batched, kernel="pallas")} if impl == "auto" else {}
    return functools.partial(lax.platform_dependent, cpu=on_cpu, default=batched, **tpu)


def orthogonalize_batch(
    stacks: list[Array], steps: Coefficients, dtype: jax.typing.DTypeLike, kernel: str | None = None
) -> list[Array]:
    """Orthogonalises all matrices with batched products, the form that suits accelerators.

    Args:
        stacks: ``[B, N, M]`` or ``[B, M, N]`` each.
        steps: coefficients of the steps.
        dtype: dtype of the products.
        kernel: ``pallas`` or ``interpret`` for the TPU kernel, None for plain JAX.
    """
    x_BNM = jnp.concatenate([_wide(x) for x in stacks])
    if kernel is None or not x_BNM.size:
        y_BNM = xla.orthogonalize(x_BNM, steps, dtype)
    else:
        y_BNM = mosaic.orthogonalize(xla.normalized(x_BNM, dtype), steps, kernel == "interpret").astype(jnp.float32)
    boundaries = list(itertools.accumulate(len(x) for x in stacks))[:-1]
    results = jnp.split(y_BNM, boundaries)
    return [y if y.shape == x.shape else y.swapaxes(-1, -2) for x, y in zip(stacks, results, strict=True)]


def _wide(x: Array) -> Array:
    """Transposes matrices with more rows than columns: products are then of n×n and n×m with n the smaller side."""
    return x if x.shape[-2] <= x.shape[-1] else x.swapaxes(-1, -2)
