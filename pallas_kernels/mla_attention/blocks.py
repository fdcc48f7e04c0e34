"""Which blocks of queries meet which blocks of keys: the list of pairs that the Mosaic kernels walk.

A kernel's grid is as long as its list, so a pair that the exit mask leaves empty is neither fetched nor computed. The
diagonal pair of every block is on the list even where it is masked throughout (padding): it is what writes the block's
output. Off the diagonal the rule is exact for exits of a depth-first tree: ``max(exit[J]) > first index of I`` for an
earlier J says that some key of J is visible to the first query of I.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from jax import Array, lax
import jax.numpy as jnp

LARGEST_BLOCK = 512
SMALLEST_BLOCK = 128
"""The lanes of a vector register: row statistics lie along them."""
SCALAR_BYTES = 1_000_000  # for a schedule, of a TPU's 1 MiB of scalar memory

_FULL, _LAST, _FIRST, _KEY_SHIFT, _QUERY_SHIFT = 1, 2, 4, 3, 17
_INDEX_MASK = 2 ** (_QUERY_SHIFT - _KEY_SHIFT) - 1


class Pair(NamedTuple):
    """One step of a kernel: block indices in the sequence, and flags; unpacked from a word of the schedule."""

    query: Array
    key: Array
    full: Array
    """Every key of the block is visible to every query of the other: no mask is needed."""
    first: Array
    """First pair of its group, the pairs that share a query block or, sorted by key, a key block."""
    last: Array


class Schedule(NamedTuple):
    """The pairs of all rows of the batch; entries from ``steps`` on are meaningless."""

    rows: Array
    """int32 ``[B * N * (N + 1) / 2]`` for N blocks a row: the row of the batch."""
    pairs: Array
    """int32, likewise: the packed Pair."""
    steps: Array
    """int32 scalar."""


def block_size(length: int) -> int:
    """Tokens per block, for queries and keys alike: at least four blocks, so that causal skipping pays, up to 512."""
    block = LARGEST_BLOCK
    while block > SMALLEST_BLOCK and 4 * block > length:
        block //= 2
    return block


def fits(batch: int, n: int) -> bool:
    """Whether the schedule of ``batch`` rows of ``n`` blocks fits into scalar memory, two words a pair."""
    return 8 * batch * n * (n + 1) // 2 <= SCALAR_BYTES


def schedule(exit_BS: Array, block: int, group: Literal["query", "key"]) -> Schedule:
    """The visible pairs, grouped by ``group`` in rising order; ``S`` is a multiple of ``block``, exits are at most S.

    Raises:
        ValueError: more blocks in a row than a packed word can count.
    """
    batch, length = exit_BS.shape
    n = length // block
    if n > _INDEX_MASK or not fits(1, n):
        raise ValueError(f"a sequence of {length:,} tokens has more blocks of {block} than scalar memory can list")
    visible_BNN, full_BNN = _visible(exit_BS, block)
    query_N1, key_N = jnp.arange(n, dtype=jnp.int32)[:, None], jnp.arange(n, dtype=jnp.int32)
    pairs_BNN = query_N1 << _QUERY_SHIFT | key_N << _KEY_SHIFT | full_BNN * _FULL
    if group == "key":
        visible_BNN, pairs_BNN = visible_BNN.swapaxes(1, 2), pairs_BNN.swapaxes(1, 2)
    group_BN1 = jnp.arange(batch * n, dtype=jnp.int32).reshape(batch, n, 1)
    # Stable: the visible pairs move to the front and stay in order.
    sorted_by_group = lax.sort((jnp.where(visible_BNN, group_BN1, batch * n).ravel(), pairs_BNN.ravel()), num_keys=1)
    group_T, pairs_T = (x[: batch * n * (n + 1) // 2] for x in sorted_by_group)
    first_T, last_T = jnp.diff(group_T, prepend=-1) != 0, jnp.diff(group_T, append=-1) != 0
    return Schedule(group_T // n, pairs_T | first_T * _FIRST | last_T * _LAST, visible_BNN.sum(dtype=jnp.int32))


def unpack(word: Array) -> Pair:
    """The Pair of a scalar of ``Schedule.pairs``."""
    query, key = word >> _QUERY_SHIFT, word >> _KEY_SHIFT & _INDEX_MASK
    return Pair(query, key, word & _FULL != 0, word & _FIRST != 0, word & _LAST != 0)


def whole_blocks(exit: Array | None, batch: int, length: int, block: int) -> Array:
    """Int32 exits ``[B, S']`` up to a whole number of blocks, S at most; an appended token is visible to nothing."""
    if exit is None:
        exit = jnp.full((batch, length), length)
    return jnp.pad(jnp.minimum(exit, length).astype(jnp.int32), ((0, 0), (0, -length % block)))


def visited_blocks(exit: Array | None, length: int, block: int) -> Array:
    """Pairs of blocks that a kernel computes for exits ``[B, S]`` (None: one causal sequence), int32 scalar."""
    exit_BS = whole_blocks(exit, 1 if exit is None else exit.shape[0], length, block)
    return _visible(exit_BS, block)[0].sum(dtype=jnp.int32)


def _visible(exit_BS: Array, block: int) -> tuple[Array, Array]:
    """Bool ``[B, query blocks, key blocks]``: the pair is on the list; it needs no mask."""
    exit_BNb = exit_BS.reshape(exit_BS.shape[0], -1, block)
    query_N1 = jnp.arange(exit_BNb.shape[1])[:, None]
    key_N = query_N1[:, 0]
    reach_B1N, sure_B1N = exit_BNb.max(-1)[:, None], exit_BNb.min(-1)[:, None]
    seen = (key_N < query_N1) & (reach_B1N > query_N1 * block)
    full = (key_N < query_N1) & (sure_B1N >= (query_N1 + 1) * block)
    return seen | (key_N == query_N1), full
