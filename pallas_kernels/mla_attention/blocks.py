"""Pairs of query blocks and key blocks that the Mosaic kernels compute, in a schedule.

A kernel's grid is as long as its schedule, so a pair in which the exit mask hides every key is neither fetched nor
computed. The diagonal pair of every block is scheduled even if it is masked throughout (padding), because it writes the
block's output. Off the diagonal the rule is exact for exits of a depth-first tree: ``max(exit[J]) > first index of I``
for an earlier block J says that some key of J is visible to the first query of I. Where the mask has starts, later
blocks of keys are scheduled too; the rule is then exact for consecutive documents.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from jax import Array, lax
import jax.numpy as jnp

LARGEST_BLOCK = 512
SMALLEST_BLOCK = 128
"""Number of lanes of a vector register: row statistics lie along them."""
SCALAR_BYTES = 1_000_000
"""Bytes for a schedule in a TPU's 1 MiB of scalar memory."""

_FULL, _LAST, _FIRST, _KEY_SHIFT, _QUERY_SHIFT = 1, 2, 4, 3, 17
_INDEX_MASK = 2 ** (_QUERY_SHIFT - _KEY_SHIFT) - 1


class BlockPair(NamedTuple):
    """One step of a kernel, unpacked from a word of the schedule.

    Attributes:
        query: index of the query block in the sequence.
        key: index of the key block.
        full: whether every key of the pair is visible to every query, so that no mask is needed.
        first: whether the pair is the first of its group. A group shares a query block or, in a schedule sorted by key,
            a key block.
        last: whether the pair is the last of its group.
    """

    query: Array
    key: Array
    full: Array
    first: Array
    last: Array


class PairSchedule(NamedTuple):
    """Pairs of all rows of the batch; entries from ``steps`` on are meaningless.

    Attributes:
        rows: int32 ``[B * N * (N + 1) / 2]`` for N blocks of a row, ``[B * N * N]`` where the mask has starts: the row
            of the batch.
        pairs: int32, the same shape, the packed BlockPair.
        steps: int32 scalar, number of pairs.
    """

    rows: Array
    pairs: Array
    steps: Array


def block_size(length: int) -> int:
    """Tokens of a block of queries or keys: up to 512, with at least four blocks, so that causal skipping pays off."""
    block = LARGEST_BLOCK
    while block > SMALLEST_BLOCK and 4 * block > length:
        block //= 2
    return block


def max_pairs(n: int, causal: bool = True) -> int:
    """Pairs of a row of ``n`` blocks in which every key is visible."""
    return n * (n + 1) // 2 if causal else n * n


def fits(batch: int, n: int, causal: bool = True) -> bool:
    """Whether the schedule of ``batch`` rows of ``n`` blocks fits into scalar memory, with two words for each pair."""
    return 8 * batch * max_pairs(n, causal) <= SCALAR_BYTES


def schedule_pairs(
    exit_BS: Array, block: int, group: Literal["query", "key"], start_BS: Array | None = None
) -> PairSchedule:
    """Schedules the visible pairs of blocks.

    Args:
        exit_BS: int32, at most S; S is a multiple of ``block``.
        block: tokens of a block.
        group: which block the pairs of a group share; groups are in rising order.
        start_BS: int32, first query that sees a key; None is causal.

    Raises:
        ValueError: if a row has more blocks than a packed word can count.
    """
    batch, length = exit_BS.shape
    n, causal = length // block, start_BS is None
    if n > _INDEX_MASK or not fits(1, n, causal):
        raise ValueError(f"a sequence of {length:,} tokens has more blocks of {block} than scalar memory can list")
    visible_BNN, full_BNN = _visible(exit_BS, block, start_BS)
    query_N1, key_N = jnp.arange(n, dtype=jnp.int32)[:, None], jnp.arange(n, dtype=jnp.int32)
    pairs_BNN = query_N1 << _QUERY_SHIFT | key_N << _KEY_SHIFT | full_BNN * _FULL
    if group == "key":
        visible_BNN, pairs_BNN = visible_BNN.swapaxes(1, 2), pairs_BNN.swapaxes(1, 2)
    group_BN1 = jnp.arange(batch * n, dtype=jnp.int32).reshape(batch, n, 1)
    # The sort is stable: the visible pairs move to the front and keep their order.
    sorted_pairs = lax.sort((jnp.where(visible_BNN, group_BN1, batch * n).ravel(), pairs_BNN.ravel()), num_keys=1)
    group_T, pairs_T = (x[: batch * max_pairs(n, causal)] for x in sorted_pairs)
    first_T, last_T = jnp.diff(group_T, prepend=-1) != 0, jnp.diff(group_T, append=-1) != 0
    return PairSchedule(group_T // n, pairs_T | first_T * _FIRST | last_T * _LAST, visible_BNN.sum(dtype=jnp.int32))


def unpack(word: Array) -> BlockPair:
    """Unpacks a scalar of ``PairSchedule.pairs``."""
    query, key = word >> _QUERY_SHIFT, word >> _KEY_SHIFT & _INDEX_MASK
    return BlockPair(query, key, word & _FULL != 0, word & _FIRST != 0, word & _LAST != 0)


def whole_blocks(exit: Array | None, batch: int, length: int, block: int) -> Array:
    """Pads exits or starts to a whole number of blocks, int32 and at most S; no query sees a padded token's exit of 0.

    No exits are those of one sequence.
    """
    if exit is None:
        exit = jnp.full((batch, length), length)
    return jnp.pad(jnp.minimum(exit, length).astype(jnp.int32), ((0, 0), (0, -length % block)))


def _visible(exit_BS: Array, block: int, start_BS: Array | None = None) -> tuple[Array, Array]:
    """Two bool arrays ``[B, query blocks, key blocks]``: whether the pair is scheduled, and whether it is full."""
    shape_BNb = (exit_BS.shape[0], exit_BS.shape[1] // block, block)
    exit_BNb = exit_BS.reshape(shape_BNb)
    query_N1 = jnp.arange(exit_BNb.shape[1])[:, None]
    key_N = query_N1[:, 0]
    latest_B1N, earliest_B1N = exit_BNb.max(-1)[:, None], exit_BNb.min(-1)[:, None]
    if start_BS is None:
        may_BNN = starts_BNN = key_N < query_N1
    else:
        start_BNb = start_BS.reshape(shape_BNb)
        may_BNN = start_BNb.min(-1)[:, None] < (query_N1 + 1) * block
        starts_BNN = start_BNb.max(-1)[:, None] <= query_N1 * block
    seen_BNN = may_BNN & (latest_B1N > query_N1 * block)
    full_BNN = starts_BNN & (earliest_B1N >= (query_N1 + 1) * block)
    return seen_BNN | (key_N == query_N1), full_BNN
