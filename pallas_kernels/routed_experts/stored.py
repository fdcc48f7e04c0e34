"""What a backward pass finds of an activation: a named copy, exact or in FP8.

Names are those that a policy of ``jax.checkpoint`` saves, offloads or leaves to be recomputed. FP8 is E4M3 in tiles of
1 x 128 with a float32 scale each (DeepSeek-V3, section 3.3.1; Kimi K2, section 2.4.3). Only the copy is rounded: what
the forward pass computes does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

TILE = 128
FP8 = jnp.float8_e4m3fn
_LARGEST = float(jnp.finfo(FP8).max)


class Fp8(NamedTuple):
    """An array `[..., R, W]` in FP8.

    Attributes:
        values: float8_e4m3fn `[..., R, W]`.
        scales: float32 `[... * tiles * R]`, the factor of each tile of 128 columns, of `[..., tiles, R]` in one axis:
            given more, XLA lays tiles out last, where a TPU pads them to 128.
    """

    values: jax.Array
    scales: jax.Array


def quantize(x: jax.Array) -> Fp8:
    """Round `x [..., R, W]` to FP8; the largest value of a tile keeps its size. A tile with a NaN is all NaN."""
    tiles = _tiles(x.astype(jnp.float32))
    largest = jnp.max(jnp.abs(tiles), axis=-1)
    scales = jnp.where(largest == 0, 1.0, largest / _LARGEST)
    values = (tiles / scales[..., None]).astype(FP8).reshape(*tiles.shape[:-2], -1)[..., : x.shape[-1]]
    return Fp8(values, scales.swapaxes(-1, -2).reshape(-1))


def dequantize(stored: Fp8, dtype: Any) -> jax.Array:
    """The array `[..., R, W]` in `dtype`."""
    tiles = _tiles(stored.values.astype(jnp.float32))
    *leading, rows, count, _ = tiles.shape
    scales = stored.scales.reshape(*leading, count, rows).swapaxes(-1, -2)
    tiles = tiles * scales[..., None]
    return tiles.reshape(*tiles.shape[:-2], -1)[..., : stored.values.shape[-1]].astype(dtype)


def _tiles(x: jax.Array) -> jax.Array:
    """`[..., W]` as `[..., tiles, 128]`, the last tile filled up with zeros; widths below 128 are one tile."""
    width = min(TILE, x.shape[-1])
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % width)])
    return padded.reshape(*x.shape[:-1], -1, width)


def name_plan(plan: Any) -> Any:
    """Name the arrays of a plan `expert_plan`, as vectors: XLA may keep `[T, K]` with K last, padded to 128 columns."""
    return jax.tree.map(lambda part: checkpoint_name(part.reshape(-1), "expert_plan").reshape(part.shape), plan)


def store(x: Any, name: str, fp8: bool) -> Any:
    """Name the copy of `x` (an array, or a tree of arrays) that the backward pass is to read through `restore`."""
    return checkpoint_name(jax.tree.map(quantize, x) if fp8 else x, name)


def restore(stored: Any, dtype: Any) -> Any:
    """What `store` was given, rounded where it was stored in FP8."""
    return jax.tree.map(
        lambda part: dequantize(part, dtype) if isinstance(part, Fp8) else part,
        stored,
        is_leaf=lambda part: isinstance(part, Fp8),
    )


def from_fp8(function: Callable, x: Any, others: Any, name: str) -> Any:
    """Compute `function(x, others)`, whose backward pass starts from an FP8 copy of `x` and keeps nothing else.

    Args:
        function: maps two trees of arrays to one; closes over no array.
        x: the tree that is stored under `name`.
        others: the rest of what it needs, weights for example, exact.
        name: what a policy calls the copy.
    """
    return _from_fp8(function, name, x, others)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _from_fp8(function, name, x, others):
    return function(x, others)


def _from_fp8_forward(function, name, x, others):
    return function(x, others), (store(x, name, fp8=True), others)


def _from_fp8_backward(function, name, residuals, cotangent):
    stored, others = residuals
    dtype = jax.tree.leaves(others)[0].dtype
    return jax.vjp(function, restore(stored, dtype), others)[1](cotangent)


_from_fp8.defvjp(_from_fp8_forward, _from_fp8_backward)
