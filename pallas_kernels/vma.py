"""Varying manual axes: the mesh axes over which an array varies inside a ``shard_map``.

JAX tracks these axes in the type of every array. A Pallas kernel has to declare those of its results, and a custom VJP
needs inputs that vary over the same axes.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import Array, lax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp


def vary_together(*arrays: Array, axes: tuple[str, ...] = ()) -> tuple[Array, ...]:
    """Marks all arrays as varying over ``axes`` and over every mesh axis that any of them varies over.

    Call it before a custom VJP, whose cotangents must vary as its inputs do: the transpose of the mark sums the
    gradients of arrays that did not vary.

    Args:
        arrays: arrays of any shapes and dtypes.
        axes: further mesh axes.

    Returns:
        The arrays with their new types, in the same order.
    """
    varying = [jax.typeof(array).manual_axis_type.varying for array in arrays]
    target = frozenset(axes).union(*varying)
    return tuple(
        lax.pcast(array, tuple(target - own), to="varying") if target - own else array
        for array, own in zip(arrays, varying, strict=True)
    )


def vary_tree(tree: Any, *, axes: tuple[str, ...] = (), like: Any = ()) -> Any:
    """Marks every array of a tree as varying over ``axes`` and over every mesh axis that ``like`` varies over.

    Args:
        tree: a pytree of arrays.
        axes: mesh axes.
        like: a pytree of arrays whose mesh axes are added.

    Returns:
        The tree with the new types.
    """
    target = frozenset(axes).union(*(jax.typeof(leaf).manual_axis_type.varying for leaf in jax.tree.leaves(like)))

    def mark(leaf: Array) -> Array:
        missing = target - jax.typeof(leaf).manual_axis_type.varying
        return lax.pcast(leaf, tuple(missing), to="varying") if missing else leaf

    return jax.tree.map(mark, tree)


def full(shape: tuple[int, ...], value: float, dtype: Any, *like: Array) -> Array:
    """A constant that varies over every mesh axis that any of ``like`` varies over: a call's result without work.

    No gradient flows from it.
    """
    return vary_tree(jnp.full(shape, value, dtype), like=like)


def output(shape: tuple[int, ...], dtype: Any, like: Array) -> jax.ShapeDtypeStruct:
    """Abstract result of a kernel that varies over the mesh axes of ``like``."""
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.typeof(like).manual_axis_type)


def interpreter(interpret: Any, like: Array) -> Any:
    """The ``interpret`` argument of ``pallas_call`` for operands that vary as ``like`` does.

    ``interpret=True`` selects the generic interpreter, whose slices of varying arrays fail under ``check_vma``. Inside
    a ``shard_map`` the TPU interpreter takes its place.
    """
    varies = jax.typeof(like).manual_axis_type.varying
    return pltpu.InterpretParams() if interpret is True and varies else interpret
