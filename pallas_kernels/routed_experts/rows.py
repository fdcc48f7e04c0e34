"""Rows that are fetched one by one from HBM: their packed form and the copies that bring a tile of them into VMEM.

A packed row of bfloat16 holds columns d and d + D / 2 in one 32-bit word (see `grouped_matmul.packing`); a row of
float32 is itself. "Halves" are the columns below D / 2 and from D / 2 on, as float32.
"""

from __future__ import annotations

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.grouped_matmul.packing import join_word, split_word


def packed_width(width: int, dtype) -> int:
    """Columns of a packed row of `width` values."""
    return width // 2 if dtype == jnp.bfloat16 else width


def packed_dtype(dtype) -> jnp.dtype:
    """The dtype of packed rows, 32 bits wide."""
    return jnp.dtype(jnp.uint32 if dtype == jnp.bfloat16 else jnp.float32)


def pack(x_TD: jax.Array) -> jax.Array:
    """Pack rows; XLA makes one pass over them."""
    if x_TD.dtype != jnp.bfloat16:
        return x_TD
    # Halves first: a conversion of the whole row would be written out for its two uses.
    low, high = (lax.bitcast_convert_type(half, jnp.uint16).astype(jnp.uint32) for half in jnp.split(x_TD, 2, axis=1))
    return low | (high << 16)


def read_halves(packed) -> tuple[jax.Array, jax.Array]:
    """Both halves, float32, of packed rows in VMEM."""
    return split_word(packed) if packed.dtype == jnp.uint32 else tuple(jnp.split(packed, 2, axis=1))


def store_halves(ref, rows, block, mask_R1, low, high) -> None:
    """Write the selected rows of column block `block` of both halves into packed rows, and keep the other rows."""
    width = low.shape[1]
    first = pl.ds(pl.multiple_of(block * width, width), width)
    if ref.dtype == jnp.uint32:
        ref[rows, first] = jnp.where(mask_R1, join_word(low, high), ref[rows, first])
        return
    second = pl.ds(pl.multiple_of(ref.shape[1] // 2 + block * width, width), width)
    ref[rows, first] = jnp.where(mask_R1, low, ref[rows, first])
    ref[rows, second] = jnp.where(mask_R1, high, ref[rows, second])


def unpack_tile(packed, out, sub: int) -> None:
    """Unpack all rows of a tile to `out`, `sub` at a time."""
    half = out.shape[1] // 2

    def step(index, carry):
        rows = pl.ds(pl.multiple_of(index * sub, sub), sub)
        low, high = read_halves(packed[rows, :])
        out[rows, :half] = low.astype(out.dtype)
        out[rows, half:] = high.astype(out.dtype)
        return carry

    lax.fori_loop(0, out.shape[0] // sub, step, 0)


def start_rows(count, copy_of) -> None:
    """Start the copies `copy_of(0 .. count - 1)`."""

    def step(index, carry):
        copy_of(index).start()
        return carry

    lax.fori_loop(0, count, step, 0)


def wait_rows(count, source, target, semaphore) -> None:
    """Wait for `count` copies of rows from `source` to rows of `target`, whichever rows they were."""

    def step(index, carry):
        pltpu.make_async_copy(source.at[0], target.at[0], semaphore).wait()
        return carry

    lax.fori_loop(0, count, step, 0)


def fetch_tile(step, tile, end, tokens_now, tokens_next, source, buffer, semaphore, consume) -> None:
    """Wait for the rows of this tile, let `consume` move them out of `buffer`, and start those of the next tile.

    Called once for each tile in order. One buffer is enough: `consume` empties it before the tile is computed, and the
    next rows arrive while it is.

    Args:
        step: the first call of a core has step 0, and starts its own rows first.
        tile: index of this tile.
        end: one past the last row of all tiles of this core.
        tokens_now: int32 [1, 1, rows of a tile] in SMEM, the rows of `source` that this tile needs.
        tokens_next: the same of the next tile.
        source: packed rows in HBM.
        buffer: packed rows of one tile in VMEM.
        semaphore: a DMA semaphore.
        consume: called when `buffer` is full.
    """
    rows = buffer.shape[0]

    def count(tile):
        return jnp.clip(end - tile * rows, 0, rows)

    def start(tokens, tile):
        def copy_of(row):
            return pltpu.make_async_copy(source.at[tokens[0, 0, row]], buffer.at[row], semaphore)

        start_rows(count(tile), copy_of)

    @pl.when(step == 0)
    def _():
        start(tokens_now, tile)

    wait_rows(count(tile), source, buffer, semaphore)
    consume()
    start(tokens_next, tile + 1)
