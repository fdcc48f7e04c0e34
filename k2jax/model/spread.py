"""A layer over devices that share it: where parts are added up.

Inside a ``shard_map`` with check_vma the type of an array says over which mesh axes it varies. Weights that vary over
``tensor`` are some heads, some of the hidden width, some rows of the vocabulary; a token's residual stream does not
vary over it. So the code of a layer is the same with and without that axis: what goes into such weights is marked
(``to_parts``, whose transpose adds the gradients up) and what comes out is added up (``sum_parts``).
"""

from __future__ import annotations

from typing import Any

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.sharding import TENSOR


def is_part(x: Array, axis: str = TENSOR) -> bool:
    """True where each device of ``axis`` has a part of its own."""
    return axis in jax.typeof(x).manual_axis_type.varying


def to_parts(x: Any, weight: Array) -> Any:
    """The input (an array or a tree) of a product with ``weight``, marked as each device's own if the weight is.

    Marked once for all products that read it, so that their gradients are added up before one sum over devices.
    """
    if not is_part(weight):
        return x
    return jax.tree.map(lambda leaf: leaf if is_part(leaf) else lax.pcast(leaf, TENSOR, to="varying"), x)


def sum_parts(x: Array, whole: Array) -> Array:
    """The sum over devices of their parts, where ``whole``, which it is to be added to, is the same on all of them."""
    return lax.psum(x, TENSOR) if is_part(x) and not is_part(whole) else x


def embed(table: Array, tokens: Array, axis: str | None = None) -> Array:
    """Rows of the embedding.

    Args:
        table: ``[V, D]``, or this device's rows of it, padded at the end of the last device's.
        tokens: int32, any shape.
        axis: the mesh axis over whose devices rows are spread; None goes by the table's type, as above.

    Returns:
        ``[..., D]``, whole.
    """
    axis = axis or (TENSOR if is_part(table) else None)
    if axis is None:
        return table[tokens]
    local = tokens - lax.axis_index(axis) * table.shape[0]
    mine = (local >= 0) & (local < table.shape[0])
    return lax.psum(jnp.where(mine[..., None], table[jnp.clip(local, 0, table.shape[0] - 1)], 0), axis)
