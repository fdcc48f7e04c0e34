"""A layer over devices that share it, or share its rows: what is sent, and where parts are added up.

Inside a ``shard_map`` with check_vma the type of an array says over which mesh axes it varies, and that decides.
Without one nothing here does anything: the code of a layer is the same.

``tensor``: weights that vary over it are some heads, some of the hidden width, some rows of the vocabulary; a token's
residual stream does not vary. What goes into such weights is marked (``to_parts``, whose transpose adds gradients up),
what comes out is added up (``sum_parts``): one sum for the attention and one for the feed-forward, each way. The routed
experts' rows are sent to their ranks by every device of ``tensor`` alike, for its part of the hidden width.

``context``: each device has consecutive tokens of every row. All but attention goes by token. There each device has all
tokens of some heads (DeepSpeed-Ulysses, arXiv:2309.14509): queries change from tokens to heads, outputs back, and MLA's
latent, from which a device makes the keys and values of its heads, is gathered. Causal work is equal on all devices.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.sharding import CONTEXT, TENSOR
from pallas_kernels.varying import vary_tree


def is_part(x: Array, axis: str = TENSOR) -> bool:
    """True where each device of ``axis`` has a part of its own."""
    return axis in jax.typeof(x).manual_axis_type.varying


def to_parts(x: Any, weight: Array) -> Any:
    """The input (an array or a tree) of a product with ``weight``, marked as each device's own if the weight is.

    Marked once for all products that read it, so that their gradients are added up before one sum over devices.
    """
    return vary_tree(x, axes=(TENSOR,)) if is_part(weight) else x


def sum_parts(x: Array, whole: Array) -> Array:
    """The sum over devices of their parts, where ``whole``, which it is to be added to, is the same on all of them."""
    return lax.psum(x, TENSOR) if is_part(x) and not is_part(whole) else x


def alike(x: Array, whole: Array) -> Array:
    """A count that devices of ``tensor`` made of the same tokens, with a type that says so where ``whole``'s does."""
    return lax.pmax(x, TENSOR) if is_part(x) and not is_part(whole) else x


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


def places_in_row(tokens: Array) -> Array:
    """int32 ``[S]``, the indices in their row of this device's tokens ``[B, S]``."""
    places = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    return places + lax.axis_index(CONTEXT) * tokens.shape[1] if is_part(tokens, CONTEXT) else places


def sum_over_rows(x: Array) -> Array:
    """What each device counted in its tokens of a row, over the whole row."""
    return lax.psum(x, CONTEXT) if is_part(x, CONTEXT) else x


def whole_rows(x: Any) -> Any:
    """Arrays ``[B, S, ...]`` (a tree of them) with the tokens of all devices."""
    gather = lambda leaf: lax.all_gather(leaf, CONTEXT, axis=1, tiled=True)  # noqa: E731
    return jax.tree.map(lambda leaf: gather(leaf) if is_part(leaf, CONTEXT) else leaf, x)


def some_heads(weight: Array, axis: int) -> Array:
    """This device's share of the heads, which are the weight's ``axis``."""
    if not is_part(weight, CONTEXT):
        return weight
    count = weight.shape[axis] // lax.axis_size(CONTEXT)
    return lax.dynamic_slice_in_dim(weight, lax.axis_index(CONTEXT) * count, count, axis)


def rows_of_some_heads(*arrays: Array) -> list[Array]:
    """From all heads of some tokens ``[B, H, S, ...]`` to some heads of all tokens, in one exchange."""
    if not is_part(arrays[0], CONTEXT):
        return list(arrays)
    ends = [sum(array.shape[-1] for array in arrays[: end + 1]) for end in range(len(arrays) - 1)]
    return jnp.split(_exchange(jnp.concatenate(arrays, axis=-1), 1, 2), ends, axis=-1)


def tokens_of_all_heads(x: Array) -> Array:
    """The way back: from some heads of all tokens ``[B, H, S, ...]`` to all heads of some tokens."""
    return _exchange(x, 2, 1) if is_part(x, CONTEXT) else x


def max_of_all_heads(max_logit: Array) -> Array:
    """Maxima ``[H]`` of this device's heads among those of all heads, -inf for the others."""
    if not is_part(max_logit, CONTEXT):
        return max_logit
    count = max_logit.shape[0]
    everyone = vary_tree(jnp.full(count * lax.axis_size(CONTEXT), -jnp.inf, max_logit.dtype), like=max_logit)
    return lax.dynamic_update_slice_in_dim(everyone, max_logit, lax.axis_index(CONTEXT) * count, 0)


def _exchange(x: Array, split: int, join: int) -> Array:
    # XLA:CPU otherwise folds transpositions into some of the exchange's operands, and refuses to mix their layouts.
    x = lax.all_to_all(lax.optimization_barrier(x), CONTEXT, split_axis=split, concat_axis=join, tiled=True)
    return lax.optimization_barrier(x)  # the same for its transpose
