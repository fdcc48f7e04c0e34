"""Tiling of grouped kernels: the visits of (group, row tile) pairs, access to blocks of rows, and tile sizes.

Rows are sorted by group and *not* padded. A row tile that spans the boundary of two groups is visited once for each;
a visit touches only rows ``[start, end)`` of its tile. Buffers therefore hold no padding, whatever the routing, and a
boundary costs one partial sub-block that is computed twice. Visits are a static number of steps of a sequential grid
dimension, described by prefetched scalars; surplus visits at the end repeat the last blocks and fetch nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
import jax.numpy as jnp

# v5e and v6e have 128 MiB of VMEM, v5p and tpu7x 64 MiB a core.
VMEM_LIMIT_BYTES = 60 << 20


class Visits(NamedTuple):
    """Visits in order of rows; every array is int32 ``[V]`` for V steps.

    Attributes:
        group_V: the group.
        tile_V: the row tile.
        start_V: first row of the group in this tile.
        end_V: one past its last row; equal to ``start_V`` for a visit without rows.
    """

    group_V: jax.Array
    tile_V: jax.Array
    start_V: jax.Array
    end_V: jax.Array


def plan_visits(sizes_G: jax.Array, rows: int, tile: int, *, empty_groups: bool) -> Visits:
    """Plans the visits of groups of consecutive rows.

    Args:
        sizes_G: int32, number of rows of each group; their sum is at most ``rows``.
        rows: number of all rows.
        tile: rows of a tile.
        empty_groups: whether a group without rows gets one visit without rows, for kernels that write a result for
            each group.
    """
    groups, tiles = sizes_G.size, pl.cdiv(rows, tile)
    end_G = jnp.cumsum(sizes_G, dtype=jnp.int32)
    start_G = end_G - sizes_G
    touched_G = jnp.where(sizes_G > 0, (end_G - 1) // tile - start_G // tile + 1, int(empty_groups))
    last_G = jnp.cumsum(touched_G, dtype=jnp.int32)
    step_V = jnp.arange(tiles + groups - 1, dtype=jnp.int32)
    visit_V = jnp.minimum(step_V, jnp.maximum(last_G[-1] - 1, 0))
    group_V = jnp.sum(last_G[None] <= visit_V[:, None], axis=1, dtype=jnp.int32)
    group_V = jnp.minimum(group_V, groups - 1)
    tile_V = start_G[group_V] // tile + visit_V - (last_G - touched_G)[group_V]
    tile_V = jnp.clip(tile_V, 0, tiles - 1)
    real_V = step_V < last_G[-1]
    start_V, end_V = (
        jnp.where(real_V, jnp.clip(edge_G[group_V] - tile_V * tile, 0, tile), 0) for edge_G in (start_G, end_G)
    )
    return Visits(group_V, tile_V, start_V, jnp.maximum(start_V, end_V))


def is_active(visits: Visits, step) -> jax.Array:
    """Whether a visit has rows; ``visits`` may hold references."""
    return visits.start_V[step] < visits.end_V[step]


def is_first_of(ids_ref, step) -> jax.Array:
    """Whether the tile (or group) of a step differs from that of the step before."""
    return (step == 0) | (ids_ref[step] != ids_ref[jnp.maximum(step - 1, 0)])


def is_last_of(ids_ref, step, steps: int) -> jax.Array:
    """Whether the tile (or group) of a step differs from that of the step after."""
    return (step == steps - 1) | (ids_ref[step] != ids_ref[jnp.minimum(step + 1, steps - 1)])


def frozen(block, blocks: int, active) -> jax.Array:
    """Index of an inner block; visits without rows keep the last index, so that they fetch nothing."""
    return jnp.where(active, block, blocks - 1)


def for_row_blocks(start, end, sub: int, body) -> None:
    """Calls ``body(rows, mask_R1)`` for each sub-block of ``sub`` rows that meets [start, end).

    The mask selects the rows of the sub-block in [start, end).
    """

    def step(index, carry):
        first = pl.multiple_of(index * sub, sub)
        row_R1 = first + lax.broadcasted_iota(jnp.int32, (sub, 1), 0)
        body(pl.ds(first, sub), (row_R1 >= start) & (row_R1 < end))
        return carry

    # Unlike ``lax.div``, ``//`` handles negative numbers, with code that Mosaic cannot compile ahead of time.
    lax.fori_loop(lax.div(start, sub), lax.div(end + (sub - 1), sub), step, 0)


def store_rows(ref, index, mask_R1, new) -> None:
    """Writes the selected rows of ``new`` (float32) to ``ref[index]``; other rows, of another visit, are kept."""
    old = ref[index].astype(jnp.float32)
    ref[index] = jnp.where(mask_R1, new.astype(jnp.float32), old).astype(ref.dtype)


def masked(value_RC, mask_R1):
    """Sets rows outside the mask to zero, whatever they hold."""
    return jnp.where(mask_R1, value_RC.astype(jnp.float32), 0.0).astype(value_RC.dtype)


def tile_of(size: int, limit: int) -> int:
    """Largest divisor of ``size`` that is a multiple of 128 and at most ``limit``; ``size`` if there is none."""
    return max((tile for tile in range(128, limit + 1, 128) if size % tile == 0), default=size)


def row_tile(rows: int, groups: int, limit: int) -> int:
    """Rows of a tile: a power of two from 128 to ``limit`` (at most 512), at most the size of an average group."""
    return next((tile for tile in (512, 256) if tile <= limit and rows >= tile * groups), 128)
