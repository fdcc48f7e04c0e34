"""Residuals of the backward pass: named copies of activations, exact or in FP8.

Policies of ``jax.checkpoint`` save, offload or recompute a residual by its name. FP8 is E4M3 in tiles of 1 x 128 with a
float32 scale each (DeepSeek-V3, section 3.3.1; Kimi K2, section 2.4.3). Only the copy is rounded: the values of the
forward pass do not change.
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
_SMALLEST_SCALE = float(jnp.finfo(jnp.float32).tiny)


class Fp8(NamedTuple):
    """An array ``[..., R, W]`` in FP8.

    Attributes:
        values: float8_e4m3fn ``[..., R, W]``.
        scales: float32, the factor of each tile of 128 columns; ``[..., tiles, R]`` flattened to one dimension, because
            XLA would otherwise choose a layout with tiles last, which a TPU pads to 128.
    """

    values: jax.Array
    scales: jax.Array


def quantize(x: jax.Array) -> Fp8:
    """Rounds ``x [..., R, W]`` to FP8, scaled by each tile's largest absolute value.

    A tile whose largest value is below 5.3e-36 is stored less finely. One with NaN or infinity is all NaN.
    """
    tiles = _tiles(x.astype(jnp.float32))
    largest = jnp.max(jnp.abs(tiles), axis=-1)
    # XLA flushes smaller scales to zero, which the tile cannot be divided by; maximum keeps NaN.
    scales = jnp.maximum(largest / _LARGEST, _SMALLEST_SCALE)
    values = (tiles / scales[..., None]).astype(FP8).reshape(*tiles.shape[:-2], -1)[..., : x.shape[-1]]
    return Fp8(values, scales.swapaxes(-1, -2).reshape(-1))


def dequantize(stored: Fp8, dtype: Any) -> jax.Array:
    """Returns the array ``[..., R, W]`` in ``dtype``."""
    tiles = _tiles(stored.values.astype(jnp.float32))
    *leading, rows, count, _ = tiles.shape
    scales = stored.scales.reshape(*leading, count, rows).swapaxes(-1, -2)
    tiles = tiles * scales[..., None]
    return tiles.reshape(*tiles.shape[:-2], -1)[..., : stored.values.shape[-1]].astype(dtype)


def _tiles(x: jax.Array) -> jax.Array:
    """Splits ``[..., W]`` into ``[..., tiles, 128]``, padded with zeros; a width below 128 is one tile."""
    width = min(TILE, x.shape[-1])
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % width)])
    return padded.reshape(*x.shape[:-1], -1, width)


def name_plan(plan: Any) -> Any:
    """Names the arrays of a plan ``expert_plan``.

    They are named as vectors, because XLA may store ``[T, K]`` with K last, padded to 128 columns.
    """
    return jax.tree.map(lambda array: checkpoint_name(array.reshape(-1), "expert_plan").reshape(array.shape), plan)


def store(x: Any, name: str, fp8: bool) -> Any:
    """Returns a named copy of ``x``, an array or a tree, which the backward pass reads through ``restore``."""
    return checkpoint_name(jax.tree.map(quantize, x) if fp8 else x, name)


def restore(stored: Any, dtype: Any) -> Any:
    """Returns the argument of ``store``, rounded where it was stored in FP8."""
    return jax.tree.map(
        lambda leaf: dequantize(leaf, dtype) if isinstance(leaf, Fp8) else leaf,
        stored,
        is_leaf=lambda leaf: isinstance(leaf, Fp8),
    )


def from_fp8(function: Callable, x: Any, others: Any, name: str) -> Any:
    """Computes ``function(x, others)``; its backward pass recomputes it from an FP8 copy of ``x``.

    Args:
        function: maps two trees of arrays to one; closes over no array.
        x: tree that is stored in FP8.
        others: further inputs, for example weights; stored exactly.
        name: name of the copy of ``x`` for policies of ``jax.checkpoint``.
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
