"""Collectives inside one layer: tensor parallelism (mesh axis ``tensor``) and context parallelism (axis ``context``).

Inside a ``shard_map`` with ``check_vma`` the type of an array says over which mesh axes it varies, and these functions
read that type. Outside one they return their input, so the code of a layer is the same on one device and on a mesh.

``tensor``: a weight that varies over it holds some of the heads, of the hidden width or of the vocabulary's rows; the
residual stream does not vary. ``enter_tensor`` marks the input of such weights (its transpose sums gradients) and
``reduce_tensor`` sums their output: one all-reduce for the attention and one for the feed-forward, each way. Every
device of ``tensor`` sends the same tokens to the routed experts and computes its part of their hidden width.

``context``: each device holds consecutive tokens of every row. Everything but attention works token by token. For
attention each device gets all tokens of some heads (DeepSpeed-Ulysses, arXiv:2309.14509): queries change from tokens to
heads, outputs change back, and MLA's latent, from which a device makes the keys and values of its heads, is gathered.
Causal work is then equal on all devices.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.sharding import CONTEXT, STAGE, TENSOR
from pallas_kernels.vma import vary_tree

_LAYER_AXES = (TENSOR, STAGE)  # over which the weights of one layer may be sharded


def is_sharded(x: Array, axis: str = TENSOR) -> bool:
    """Whether ``x`` varies over the mesh axis ``axis``: each device holds a part of its own."""
    return axis in jax.typeof(x).manual_axis_type.varying


def enter_tensor(x: Any, weight: Any) -> Any:
    """Marks the input of products with ``weight`` as varying over the axes that shard the weight; both may be trees.

    It is marked once for all products that read it, so that their gradients are summed locally before one all-reduce.
    """
    parts = jax.tree.leaves(weight)
    axes = tuple(axis for axis in _LAYER_AXES if any(is_sharded(part, axis) for part in parts))
    return vary_tree(x, axes=axes) if axes else x


def reduce_tensor(x: Array, residual: Array) -> Array:
    """Sums a layer's partial outputs over the axes that shard it: those over which ``residual`` does not vary."""
    axes = _partial_axes(x, residual)
    return lax.psum(x, axes) if axes else x


def mark_replicated(x: Array, like: Array) -> Array:
    """Marks counts that the devices of a layer have in common as not varying where ``like`` does not vary."""
    axes = _partial_axes(x, like)
    return lax.pmax(x, axes) if axes else x


def _partial_axes(x: Array, whole: Array) -> tuple[str, ...]:
    return tuple(axis for axis in _LAYER_AXES if is_sharded(x, axis) and not is_sharded(whole, axis))


def embed(table: Array, tokens: Array, axis: str | None = None) -> Array:
    """Looks tokens up in the embedding.

    Args:
        table: ``[V, D]``, or this device's rows of it, padded at the end of the last device's.
        tokens: int32, any shape.
        axis: the mesh axis that shards the rows; None goes by the table's type: ``tensor``, or none.

    Returns:
        ``[..., D]``, equal on all devices of ``axis``.
    """
    axis = axis or (TENSOR if is_sharded(table) else None)
    if axis is None:
        return table[tokens]
    local = tokens - lax.axis_index(axis) * table.shape[0]
    mine = (local >= 0) & (local < table.shape[0])
    return lax.psum(jnp.where(mine[..., None], table[jnp.clip(local, 0, table.shape[0] - 1)], 0), axis)


def token_indices(tokens: Array) -> Array:
    """The index in its row, int32 ``[S]``, of each of this device's tokens ``[B, S]``."""
    places = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    return places + lax.axis_index(CONTEXT) * tokens.shape[1] if is_sharded(tokens, CONTEXT) else places


def reduce_sequence(x: Array) -> Array:
    """Sums over ``context`` what each device counted in its tokens of a row."""
    return lax.psum(x, CONTEXT) if is_sharded(x, CONTEXT) else x


def all_gather_sequence(x: Any) -> Any:
    """Gathers arrays ``[B, S, ...]`` (a tree of them) over ``context``: all tokens of each row."""
    gather = lambda leaf: lax.all_gather(leaf, CONTEXT, axis=1, tiled=True)  # noqa: E731
    return jax.tree.map(lambda leaf: gather(leaf) if is_sharded(leaf, CONTEXT) else leaf, x)


def local_heads(weight: Array, axis: int) -> Array:
    """The part of a weight that belongs to the heads of this device of ``context``; ``axis`` counts heads."""
    if not is_sharded(weight, CONTEXT):
        return weight
    count = weight.shape[axis] // lax.axis_size(CONTEXT)
    return lax.dynamic_slice_in_dim(weight, lax.axis_index(CONTEXT) * count, count, axis)


def sequence_to_heads(*arrays: Array) -> list[Array]:
    """Exchanges ``[B, H, S, ...]`` from all heads of some tokens to some heads of all tokens, in one all-to-all."""
    if not is_sharded(arrays[0], CONTEXT):
        return list(arrays)
    ends = [sum(array.shape[-1] for array in arrays[: end + 1]) for end in range(len(arrays) - 1)]
    return jnp.split(_exchange(jnp.concatenate(arrays, axis=-1), 1, 2), ends, axis=-1)


def heads_to_sequence(x: Array) -> Array:
    """Exchanges ``[B, H, S, ...]`` from some heads of all tokens to all heads of some tokens."""
    return _exchange(x, 2, 1) if is_sharded(x, CONTEXT) else x


def scatter_head_maxima(max_logit: Array) -> Array:
    """Puts the maxima ``[H]`` of this device's heads among those of all heads, with -inf for the others."""
    if not is_sharded(max_logit, CONTEXT):
        return max_logit
    count = max_logit.shape[0]
    everyone = vary_tree(jnp.full(count * lax.axis_size(CONTEXT), -jnp.inf, max_logit.dtype), like=max_logit)
    return lax.dynamic_update_slice_in_dim(everyone, max_logit, lax.axis_index(CONTEXT) * count, 0)


def _exchange(x: Array, split: int, join: int) -> Array:
    # XLA:CPU otherwise folds transpositions into some of the exchange's operands, and refuses to mix their layouts.
    x = lax.all_to_all(lax.optimization_barrier(x), CONTEXT, split_axis=split, concat_axis=join, tiled=True)
    return lax.optimization_barrier(x)  # the same for its transpose
