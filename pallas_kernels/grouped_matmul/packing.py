"""Pairs of bfloat16 numbers in 32-bit words, in vectors and in memory, for DMAs of single rows and for cheap views.

bfloat16 memory is tiled so that two rows share each 32-bit word, and a DMA cannot move one of them alone. Rows that are
gathered one by one therefore travel as words that hold columns d and d + D / 2 of one row. Where the second-to-last
axis has two entries (gate and up), the words of the array already hold that pair: a view as words separates it with
shifts, without a copy of the weights. Shifts are exact: a bfloat16 is the upper half of the float32 of the same value.
"""

from __future__ import annotations

import jax
from jax import lax
import jax.numpy as jnp

_HIGH = 0xFFFF0000


def split_word(word) -> tuple[jax.Array, jax.Array]:
    """Returns the float32 values of the low and the high bfloat16 of uint32 words."""
    low = lax.bitcast_convert_type(word << 16, jnp.float32)
    return low, lax.bitcast_convert_type(word & jnp.uint32(_HIGH), jnp.float32)


def join_word(low, high) -> jax.Array:
    """Rounds two float32 arrays to bfloat16 and packs them into the low and the high half of uint32 words."""
    low, high = (
        lax.bitcast_convert_type(half.astype(jnp.bfloat16).astype(jnp.float32), jnp.uint32) for half in (low, high)
    )
    return (low >> 16) | (high & jnp.uint32(_HIGH))


def read_pair(ref, rows, *, words: bool) -> tuple[jax.Array, jax.Array]:
    """Reads ``ref[0, rows, 0]`` and ``ref[0, rows, 1]`` of a block ``[1, K, 2, N]``.

    Args:
        ref: the block.
        rows: the rows to read.
        words: whether to view pairs of bfloat16 as words, which interpret mode does not support; float32 is not packed.
    """
    if not words:
        return ref[0, rows, 0, :], ref[0, rows, 1, :]
    first, second = split_word(ref.bitcast(jnp.uint32)[0, rows, 0, :])
    return first.astype(ref.dtype), second.astype(ref.dtype)


def write_pair(ref, rows, first, second, *, words: bool) -> None:
    """Writes float32 ``first`` and ``second`` to ``ref[0, rows, 0]`` and ``ref[0, rows, 1]``; inverts ``read_pair``."""
    if words:
        ref.bitcast(jnp.uint32)[0, rows, 0, :] = join_word(first, second)
    else:
        ref[0, rows, 0, :] = first.astype(ref.dtype)
        ref[0, rows, 1, :] = second.astype(ref.dtype)


def pairs_are_words(dtype, interpret) -> bool:
    """Whether ``read_pair`` and ``write_pair`` may view pairs as words."""
    return dtype == jnp.bfloat16 and not interpret
