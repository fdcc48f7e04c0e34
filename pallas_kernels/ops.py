"""Array operations that several kernels share."""

from __future__ import annotations

import jax
from jax import lax
import jax.numpy as jnp

from pallas_kernels.vma import full


def take(array: jax.Array, index: jax.Array, fill: float = 0) -> jax.Array:
    """Gathers the rows ``array[index]``; an index outside the array, negative ones included, gives ``fill``.

    Args:
        array: ``[N, ...]``, any dtype.
        index: integers of any shape.
        fill: value of rows whose index is outside ``[0, N)``.

    Returns:
        ``[*index.shape, ...]`` in the dtype of ``array``.
    """
    if not array.shape[0]:  # JAX gathers from no empty dimension
        return full((*index.shape, *array.shape[1:]), fill, array.dtype, array, index)
    return array.at[index].get(mode="fill", fill_value=fill, wrap_negative_indices=False)


def dot(a: jax.Array, b: jax.Array, contract: tuple[int, int] = (1, 0)) -> jax.Array:
    """Product of two matrices with float32 sums; float32 operands are multiplied at full precision.

    Args:
        a: a matrix, float32 or bfloat16.
        b: a matrix in the dtype of ``a``.
        contract: the contracted dimension of ``a`` and that of ``b``.

    Returns:
        A float32 matrix: the remaining dimension of ``a`` by the remaining dimension of ``b``.
    """
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT
    dimensions = (((contract[0],), (contract[1],)), ((), ()))
    return lax.dot_general(a, b, dimensions, precision=precision, preferred_element_type=jnp.float32)
