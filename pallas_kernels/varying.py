"""Inside a shard_map every array says over which mesh axes it varies; kernels have to be told, and to be alike."""

from __future__ import annotations

from typing import Any

import jax
from jax import Array, lax
from jax.experimental.pallas import tpu as pltpu


def vary_together(*arrays: Array, axes: tuple[str, ...] = ()) -> tuple[Array, ...]:
    """Marks all arrays as varying over ``axes`` and over the mesh axes over which any of them varies.

    To be done before a custom VJP, whose cotangents must vary as its inputs do: the transpose of the mark sums the
    gradients of what did not vary.
    """
    varying = [jax.typeof(array).manual_axis_type.varying for array in arrays]
    wanted = frozenset(axes).union(*varying)
    return tuple(
        lax.pcast(array, tuple(wanted - own), to="varying") if wanted - own else array
        for array, own in zip(arrays, varying, strict=True)
    )


def vary_tree(tree: Any, *, axes: tuple[str, ...] = (), like: Any = ()) -> Any:
    """Marks every array of ``tree`` as varying over ``axes`` and over whatever any array of ``like`` varies over."""
    wanted = frozenset(axes).union(*(jax.typeof(leaf).manual_axis_type.varying for leaf in jax.tree.leaves(like)))

    def mark(leaf: Array) -> Array:
        missing = wanted - jax.typeof(leaf).manual_axis_type.varying
        return lax.pcast(leaf, tuple(missing), to="varying") if missing else leaf

    return jax.tree.map(mark, tree)


def output(shape: tuple[int, ...], dtype: Any, like: Array) -> jax.ShapeDtypeStruct:
    """A kernel's result, which varies as ``like`` does."""
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.typeof(like).manual_axis_type)


def interpreter(interpret: Any, like: Array) -> Any:
    """``interpret`` as ``pallas_call`` takes it; the plain interpreter slices varying arrays as check_vma refuses."""
    varies = jax.typeof(like).manual_axis_type.varying
    return pltpu.InterpretParams() if interpret is True and varies else interpret
