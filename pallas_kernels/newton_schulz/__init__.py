"""Newton-Schulz orthogonalisation of a stack of matrices: the inner loop of Muon.

Every matrix of a stack is pushed towards the nearest (semi-)orthogonal one, independently of the others, by a few steps
of an odd quintic polynomial. The norm is float32 always; the matrix products run in the dtype asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import itertools
import math

import jax
from jax import Array, lax
import jax.numpy as jnp

from pallas_kernels.implementation import IMPLEMENTATIONS, Impl
from pallas_kernels.newton_schulz import mosaic

Coefficients = Sequence[tuple[float, float, float]]  # one (a, b, c) per step

EPSILON = 1e-7  # added to the Frobenius norm

MUON = (3.4445, -4.7750, 2.0315)  # K. Jordan's quintic, the same at every step

# Amsel et al., "The Polar Express" (arXiv:2505.16932), for singular values from 1e-3 to 1. Step k's polynomial is the
# best one after the k - 1 before it, so that fewer steps are a prefix of the list.
POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
)
POLAR_EXPRESS_SAFETY = 1.01  # the paper's margin for singular values rounded above 1, on every step but the eighth


def coefficients(preset: str, steps: int) -> tuple[tuple[float, float, float], ...]:
    """The (a, b, c) of every step.

    Args:
        preset: ``muon`` (one quintic repeated, any number of steps) or ``polar_express`` (a different polynomial per
            step: the first ``steps`` of the eight that the paper lists, never repeated).
        steps: number of iterations.

    Raises:
        ValueError: an unknown preset, no step, or more steps than the preset has polynomials.
    """
    if steps < 1:
        raise ValueError(f"Newton-Schulz needs at least one step, not {steps}")
    if preset == "muon":
        return (MUON,) * steps
    if preset != "polar_express":
        raise ValueError(f"unknown Newton-Schulz preset {preset!r}; there are muon and polar_express")
    if steps > len(POLAR_EXPRESS):
        raise ValueError(f"polar_express has {len(POLAR_EXPRESS)} steps, not {steps}")
    s = POLAR_EXPRESS_SAFETY
    safe = tuple((a / s, b / s**3, c / s**5) for a, b, c in POLAR_EXPRESS[:-1])
    return (*safe, POLAR_EXPRESS[-1])[:steps]


def newton_schulz(
    x: Array, coefficients: Coefficients, dtype: jax.typing.DTypeLike | None = None, impl: Impl = "auto"
) -> Array:
    """Orthogonalises every matrix of a stack: U p(S) Vᵀ with p(S) near 1, for the singular values S.

    ``X = x / (‖x‖_F + 1e-7)``; per step ``A = X Xᵀ; X = a X + (b A + c A²) X`` with rows ≤ columns by transposition
    (K. Jordan's Muon; Moonlight, arXiv:2502.16982, section 2.1). A zero matrix stays zero.

    Args:
        x: ``[..., n, m]``, any float dtype.
        coefficients: one (a, b, c) per step.
        dtype: of the matrix products; None takes float32 on CPU and bfloat16 elsewhere, by the platform that the
            computation is compiled for.
        impl: ``xla`` for plain JAX, ``pallas`` for the TPU kernel, ``interpret`` to run it anywhere; ``auto`` takes the
            kernel where the computation is compiled for a TPU.

    Returns:
        float32 ``[..., n, m]``.

    Raises:
        ValueError: ``x`` has fewer than two axes, a step has not three coefficients, or no such implementation.
    """
    return newton_schulz_stacks([x], coefficients, dtype, impl)[0]


def newton_schulz_stacks(
    stacks: Sequence[Array],
    coefficients: Coefficients,
    dtype: jax.typing.DTypeLike | None = None,
    impl: Impl = "auto",
) -> list[Array]:
    """``newton_schulz`` of several stacks whose matrices have one shape, up to transposition.

    Accelerators get all of them as one batched call; a CPU goes through them matrix by matrix, without the copies that
    stacking costs. The result is the same.

    Args:
        stacks: arrays ``[..., n, m]`` or ``[..., m, n]``.
        coefficients: as in ``newton_schulz``.
        dtype: as in ``newton_schulz``.
        impl: as in ``newton_schulz``.

    Returns:
        float32 arrays of the shapes given.

    Raises:
        ValueError: as ``newton_schulz``, or matrices of different shapes.
    """
    if not coefficients or any(len(step) != 3 for step in coefficients):
        raise ValueError(f"Newton-Schulz needs (a, b, c) per step, not {coefficients}")
    if any(x.ndim < 2 for x in stacks) or len({tuple(sorted(x.shape[-2:])) for x in stacks}) > 1:
        raise ValueError(f"need matrices of one shape, not {[x.shape for x in stacks]}")
    flat = [x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]) for x in stacks]
    steps = tuple(tuple(float(c) for c in step) for step in coefficients)
    results = _implementation(impl, steps, dtype)(flat)
    return [result.reshape(x.shape) for result, x in zip(results, stacks, strict=True)]


def _implementation(impl: Impl, steps: Coefficients, dtype: jax.typing.DTypeLike | None):
    """Stacks to stacks. Nothing is differentiated here, so that ``auto`` can wait for the compiler's platform."""
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl is one of {', '.join(IMPLEMENTATIONS)}, not {impl!r}")
    on_cpu = functools.partial(_one_by_one, steps=steps, dtype=dtype or jnp.float32)
    batched = functools.partial(_all_at_once, steps=steps, dtype=dtype or jnp.bfloat16)
    if impl == "interpret":
        return functools.partial(_all_at_once, steps=steps, dtype=dtype or jnp.float32, kernel="interpret")
    if impl == "pallas":
        return functools.partial(batched, kernel="pallas")
    tpu = {"tpu": functools.partial(batched, kernel="pallas")} if impl == "auto" else {}
    return functools.partial(lax.platform_dependent, cpu=on_cpu, default=batched, **tpu)


def _all_at_once(
    stacks: list[Array], steps: Coefficients, dtype: jax.typing.DTypeLike, kernel: str | None = None
) -> list[Array]:
    """Batched matrix products over everything: what an accelerator wants."""
    x = jnp.concatenate([_wide(x) for x in stacks])
    if kernel is None or not x.size:
        result = _orthogonalize(x, steps, dtype)
    else:
        result = mosaic.orthogonalize(_normalized(x, dtype), steps, kernel == "interpret").astype(jnp.float32)
    cuts = list(itertools.accumulate(len(x) for x in stacks))[:-1]
    pieces = jnp.split(result, cuts)
    return [y if y.shape == x.shape else y.swapaxes(-1, -2) for x, y in zip(stacks, pieces, strict=True)]


def _one_by_one(stacks: list[Array], steps: Coefficients, dtype: jax.typing.DTypeLike) -> list[Array]:
    """All steps of one matrix before the next: it stays in cache, and XLA:CPU's plain products beat its batched ones.

    Measured on [288, 128, 256] float32, two threads: 310 ms against 610 ms for batched products.
    """

    def one(x: Array) -> Array:
        if x.shape[-2] <= x.shape[-1]:
            return _orthogonalize(x, steps, dtype, gram_runs=True)
        # The barriers keep XLA from folding the transpositions into products, which would make those slower.
        wide = lax.optimization_barrier(x.swapaxes(-1, -2))
        return lax.optimization_barrier(_orthogonalize(wide, steps, dtype, gram_runs=True)).swapaxes(-1, -2)

    return [one(x[0])[None] if len(x) == 1 else lax.map(one, lax.optimization_barrier(x)) for x in stacks]


def _orthogonalize(x: Array, steps: Coefficients, dtype: jax.typing.DTypeLike, gram_runs: bool = False) -> Array:
    """Normalises and iterates ``[..., n, m]`` with n ≤ m; ``gram_runs`` takes the cheaper form where it is one."""
    x = _normalized(x, dtype)
    if gram_runs and dtype == jnp.float32 and x.shape[-1] >= 2 * x.shape[-2]:
        return _iterate_in_runs(x, steps)
    # Sums are float32, as are the coefficients: they would lose a digit in bfloat16. HIGHEST because accelerators
    # otherwise multiply float32 in less.
    highest = lax.Precision.HIGHEST if dtype == jnp.float32 else None
    product = functools.partial(jnp.matmul, precision=highest, preferred_element_type=jnp.float32)

    def step(x: Array, abc: Array) -> tuple[Array, None]:
        a, b, c = abc
        gram = product(x, x.swapaxes(-1, -2))
        low = gram.astype(dtype)
        poly = (b * gram + c * product(low, low)).astype(dtype)
        return (a * x + product(poly, x)).astype(dtype), None

    return lax.scan(step, x, jnp.asarray(steps, jnp.float32))[0].astype(jnp.float32)


def _normalized(x: Array, dtype: jax.typing.DTypeLike) -> Array:
    """Divided by the Frobenius norm, which is taken in float32, then cast."""
    x = x.astype(jnp.float32)
    norm = jnp.sqrt(jnp.sum(jnp.square(x), axis=(-2, -1), keepdims=True))
    return (x / (norm + EPSILON)).astype(dtype)


def _iterate_in_runs(x: Array, steps: Coefficients) -> Array:
    """The same iteration on float32 ``[n, m]`` with fewer FLOPs when m ≥ 2n: 12 % fewer at m = 2n, a third at m = 4n.

    Every step multiplies X by a polynomial P of A = X Xᵀ, and P A P is the next A; so a run of steps works on n×n
    matrices and multiplies X once. Runs are short because rounding grows along them: in float32, two and three steps
    are as exact as the plain iteration (≤ 1e-5 on ill-conditioned matrices), five in one run are not (1e-4), and in
    bfloat16 even that diverges.
    """
    cuts = list(range(0, max(len(steps) - 1, 1), 2))
    for start, stop in zip(cuts, [*cuts[1:], len(steps)], strict=True):
        gram = x @ x.T
        total = None
        for number, (a, b, c) in enumerate(steps[start:stop], start + 1):
            poly = b * gram + c * (gram @ gram) + a * jnp.eye(len(x))
            total = poly if total is None else poly @ total
            if number < stop:
                gram = poly @ (poly @ gram)
        x = total @ x
    return x


def _wide(x: Array) -> Array:
    """Transposes tall matrices: the products of an iteration are between n×n and n×m with n the smaller side."""
    return x if x.shape[-2] <= x.shape[-1] else x.swapaxes(-1, -2)
