"""Public functions of grouped matmuls, each the other's gradient, and their custom VJPs."""

from __future__ import annotations

from functools import partial

import jax
from jax import lax
import jax.numpy as jnp

from pallas_kernels.grouped_matmul import mosaic
from pallas_kernels.implementation import Impl, resolve
from pallas_kernels.vma import full, vary_together


def grouped_matmul(
    lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, *, impl: Impl = "auto", _tiles=None
) -> jax.Array:
    """Multiplies each row with the matrix of its group: ``out[m] = lhs[m] @ rhs[group of m]``.

    The rows of a group are consecutive, and groups are in order. Rows beyond the last group give 0, whatever they hold.
    Differentiable in lhs and rhs. Sums are float32. The tiling is described in ``grouped_matmul.mosaic``.

    Args:
        lhs: ``[M, K]``, float32 or bfloat16; rows sorted by group.
        rhs: ``[G, K, N]``, in the dtype of lhs.
        group_sizes: int32 ``[G]``, number of rows of each group; their sum is at most M.
        impl: ``xla`` is ``lax.ragged_dot``; ``pallas`` needs K and N to be multiples of 128; ``auto`` is ``pallas`` on
            a TPU for the shapes that it supports.

    Returns:
        ``[M, N]`` in the dtype of lhs.

    Raises:
        ValueError: if shapes or dtypes disagree, or the kernel does not support them.
    """
    if lhs.ndim != 2 or rhs.ndim != 3 or lhs.shape[1] != rhs.shape[1] or group_sizes.shape != rhs.shape[:1]:
        raise ValueError(f"expected [M, K], [G, K, N], [G]; got {lhs.shape}, {rhs.shape}, {group_sizes.shape}")
    impl = resolve(_supported(impl, lhs, rhs))
    if 0 in (lhs.size, rhs.size):
        return full((lhs.shape[0], rhs.shape[2]), 0, lhs.dtype, lhs, rhs, group_sizes)
    lhs, rhs, group_sizes = vary_together(lhs, rhs, group_sizes)
    return _multiply(lhs, rhs, group_sizes, False, impl, _tiles)


def grouped_matmul_transposed(
    lhs: jax.Array, dout: jax.Array, group_sizes: jax.Array, *, impl: Impl = "auto", _tiles=None
) -> jax.Array:
    """Sums ``lhs[m]^T dout[m]`` over the rows of each group: the gradient of ``grouped_matmul`` in ``rhs``.

    Rows beyond the last group add nothing, whatever they hold. Differentiable in lhs and dout. Sums are float32.

    Args:
        lhs: ``[M, K]``, float32 or bfloat16; rows sorted by group.
        dout: ``[M, N]``, in the dtype of lhs.
        group_sizes: int32 ``[G]``, number of rows of each group; their sum is at most M.
        impl: as in ``grouped_matmul``; ``xla`` is the transpose of ``lax.ragged_dot``.

    Returns:
        ``[G, K, N]`` in the dtype of lhs; 0 for groups without rows.

    Raises:
        ValueError: if shapes or dtypes disagree, or the kernel does not support them.
    """
    if lhs.ndim != 2 or dout.ndim != 2 or lhs.shape[0] != dout.shape[0] or group_sizes.ndim != 1:
        raise ValueError(f"expected [M, K], [M, N], [G]; got {lhs.shape}, {dout.shape}, {group_sizes.shape}")
    impl = resolve(_supported(impl, lhs, dout))
    if 0 in (lhs.size, dout.size, group_sizes.size):
        return full((group_sizes.size, lhs.shape[1], dout.shape[1]), 0, lhs.dtype, lhs, dout, group_sizes)
    lhs, dout, group_sizes = vary_together(lhs, dout, group_sizes)
    return _transposed(lhs, dout, group_sizes, impl, _tiles)


def _supported(impl, a, b):
    """Replaces ``auto`` by ``xla`` for shapes that the kernels do not support; an explicit choice of a kernel fails."""
    if a.dtype != b.dtype or a.dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"operands must both be float32 or both bfloat16; got {a.dtype}, {b.dtype}")
    if a.shape[-1] % 128 == 0 and b.shape[-1] % 128 == 0:
        return impl
    if impl == "pallas":
        raise ValueError(f"the TPU kernel needs K and N to be multiples of 128; got {a.shape}, {b.shape}")
    return "xla" if impl == "auto" else impl


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _multiply(lhs_MK, rhs_G, sizes_G, transpose_rhs, impl, tiles):
    """The right-hand side is ``[G, K, N]``, or ``[G, N, K]`` with ``transpose_rhs``, which avoids a transposed copy."""
    if impl == "xla":
        rhs_GKN = rhs_G.swapaxes(1, 2) if transpose_rhs else rhs_G
        in_group_M1 = jnp.arange(lhs_MK.shape[0])[:, None] < jnp.sum(sizes_G)
        return jnp.where(in_group_M1, _ragged_dot(lhs_MK, rhs_GKN, sizes_G), 0)
    tiles = tiles and (tiles._replace(k=tiles.n, n=tiles.k) if transpose_rhs else tiles)
    return mosaic.multiply(
        lhs_MK, rhs_G, sizes_G, transpose_rhs=transpose_rhs, tiles=tiles, interpret=impl == "interpret"
    )


def _multiply_forward(lhs_MK, rhs_G, sizes_G, transpose_rhs, impl, tiles):
    return _multiply(lhs_MK, rhs_G, sizes_G, transpose_rhs, impl, tiles), (lhs_MK, rhs_G, sizes_G)


def _multiply_backward(transpose_rhs, impl, tiles, residuals, dout_MN):
    lhs_MK, rhs_G, sizes_G = residuals
    dlhs_MK = _multiply(dout_MN, rhs_G, sizes_G, not transpose_rhs, impl, tiles)
    pair = (dout_MN, lhs_MK) if transpose_rhs else (lhs_MK, dout_MN)
    return dlhs_MK, _transposed(*pair, sizes_G, impl, tiles), None


_multiply.defvjp(_multiply_forward, _multiply_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _transposed(lhs_MK, dout_MN, sizes_G, impl, tiles):
    if impl == "xla":
        in_group_M1 = jnp.arange(lhs_MK.shape[0])[:, None] < jnp.sum(sizes_G)
        lhs_MK, dout_MN = jnp.where(in_group_M1, lhs_MK, 0), jnp.where(in_group_M1, dout_MN, 0)
        zero_GKN = jnp.zeros((sizes_G.size, lhs_MK.shape[1], dout_MN.shape[1]), lhs_MK.dtype)
        return jax.vjp(lambda rhs_GKN: _ragged_dot(lhs_MK, rhs_GKN, sizes_G), zero_GKN)[1](dout_MN)[0]
    return mosaic.multiply_transposed(lhs_MK, dout_MN[None], sizes_G, tiles=tiles, interpret=impl == "interpret")


def _transposed_forward(lhs_MK, dout_MN, sizes_G, impl, tiles):
    return _transposed(lhs_MK, dout_MN, sizes_G, impl, tiles), (lhs_MK, dout_MN, sizes_G)


def _transposed_backward(impl, tiles, residuals, cotangent_GKN):
    lhs_MK, dout_MN, sizes_G = residuals
    dlhs_MK = _multiply(dout_MN, cotangent_GKN, sizes_G, True, impl, tiles)
    return dlhs_MK, _multiply(lhs_MK, cotangent_GKN, sizes_G, False, impl, tiles), None


_transposed.defvjp(_transposed_forward, _transposed_backward)


def _ragged_dot(lhs_MK, rhs_GKN, sizes_G):
    return lax.ragged_dot(lhs_MK, rhs_GKN, sizes_G, precision=lax.Precision.HIGHEST).astype(lhs_MK.dtype)
