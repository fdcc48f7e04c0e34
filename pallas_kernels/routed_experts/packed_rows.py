"""Packed rows, and the copies that fetch a tile of them row by row from HBM into VMEM.

A packed row of bfloat16 holds columns d and d + D / 2 in one 32-bit word (see ``grouped_matmul.packing``); a row of
float32 is its own packed form. "Halves" are the columns below D / 2 and from D / 2 on, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.grouped_matmul.packing import join_word, split_word


def packed_width(width: int, dtype) -> int:
    """Number of columns of a packed row of ``width`` values."""
    return width // 2 if dtype == jnp.bfloat16 else width


def packed_dtype(dtype) -> jnp.dtype:
    """Dtype of packed rows, 32 bits wide."""
    return jnp.dtype(jnp.uint32 if dtype == jnp.bfloat16 else jnp.float32)


def pack(x_TD: jax.Array) -> jax.Array:
    """Packs rows; XLA compiles it to one pass over them."""
    if x_TD.dtype != jnp.bfloat16:
        return x_TD
    # The row is split first: XLA would materialise a conversion of the whole row, which has two uses.
    low, high = (lax.bitcast_convert_type(half, jnp.uint16).astype(jnp.uint32) for half in jnp.split(x_TD, 2, axis=1))
    return low | (high << 16)


def read_halves(packed) -> tuple[jax.Array, jax.Array]:
    """Reads both halves of packed rows in VMEM, in float32."""
    return split_word(packed) if packed.dtype == jnp.uint32 else tuple(jnp.split(packed, 2, axis=1))


def store_halves(ref, rows, block, mask_R1, low, high) -> None:
    """Writes column block ``block`` of both halves into the selected packed rows; other rows keep their values."""
    width = low.shape[1]
    first = pl.ds(pl.multiple_of(block * width, width), width)
    if ref.dtype == jnp.uint32:
        ref[rows, first] = jnp.where(mask_R1, join_word(low, high), ref[rows, first])
        return
    second = pl.ds(pl.multiple_of(ref.shape[1] // 2 + block * width, width), width)
    ref[rows, first] = jnp.where(mask_R1, low, ref[rows, first])
    ref[rows, second] = jnp.where(mask_R1, high, ref[rows, second])


def unpack_tile(packed, out, sub: int) -> None:
    """Unpacks all rows of a tile to ``out``, ``sub`` at a time."""
    half = out.shape[1] // 2

    def step(index, carry):
        rows = pl.ds(pl.multiple_of(index * sub, sub), sub)
        low, high = read_halves(packed[rows, :])
        out[rows, :half] = low.astype(out.dtype)
        out[rows, half:] = high.astype(out.dtype)
        return carry

    lax.fori_loop(0, out.shape[0] // sub, step, 0)


def start_rows(count, copy_of) -> None:
    """Starts the copies ``copy_of(0)`` to ``copy_of(count - 1)``."""

    def step(index, carry):
        copy_of(index).start()
        return carry

    lax.fori_loop(0, count, step, 0)


def wait_rows(count, source, target, semaphore) -> None:
    """Waits for ``count`` copies of any rows of ``source`` to any rows of ``target``."""

    def step(index, carry):
        pltpu.make_async_copy(source.at[0], target.at[0], semaphore).wait()
        return carry

    lax.fori_loop(0, count, step, 0)


class RowFetch(NamedTuple):
    """References of a fetch of rows.

    Attributes:
        source: packed rows in HBM.
        buffer: packed rows of one tile in VMEM.
        semaphore: a DMA semaphore.
    """

    source: Any
    buffer: Any
    semaphore: Any


def fetch_tile(fetch: RowFetch, consume: Callable[[], None], *, step, tile, end, tokens_now, tokens_next) -> None:
    """Waits for the rows of a tile, calls ``consume``, and starts to fetch the rows of the next tile.

    Called once for each tile in order. One buffer is enough: ``consume`` empties it before the tile is computed, and
    the next rows arrive during the computation.

    Args:
        fetch: the references to copy between.
        consume: moves the rows out of the buffer.
        step: step of the core; step 0 starts its own rows first.
        tile: index of the tile.
        end: one past the last row of all tiles of the core.
        tokens_now: int32 ``[1, 1, rows of a tile]`` in SMEM, the rows of ``fetch.source`` that the tile needs.
        tokens_next: the same for the next tile.
    """
    source, buffer, semaphore = fetch
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
