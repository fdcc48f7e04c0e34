"""Pairs of query blocks and key blocks that the Mosaic kernels compute, in a schedule.

A kernel's grid is as long as its schedule, so a pair in which the exit mask hides every key is neither fetched nor
computed. The diagonal pair of every block is scheduled even if it is masked throughout (padding), because it writes the
block's output. Off the diagonal the rule is exact for exits of a depth-first tree: ``max(exit[J]) > first index of I``
for an earlier block J says that some key of J is visible to the first query of I. Where the mask has starts, later
blocks of keys are scheduled too; the rule is then exact for consecutive documents.

A schedule lies in scalar memory. Where the pairs of all rows do not fit there, every row is cut into panels of
consecutive groups, and each panel has a schedule and a call of its own: scalar memory holds a part of the list whose
size has a bound, whatever the length.
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
MAX_BLOCKS = 2 ** (_QUERY_SHIFT - _KEY_SHIFT) - 1
"""Blocks of the longest row, whose indices are packed into a word."""
MAX_LENGTH = MAX_BLOCKS * LARGEST_BLOCK
"""Tokens of the longest row that the kernels take: 8.4M."""


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
    """Pairs of all rows of the batch, or of a panel; entries from ``steps`` on are meaningless.

    Attributes:
        rows: int32, as long as there may be pairs: the row of the batch.
        pairs: int32, the same shape, the packed BlockPair.
        steps: int32 scalar, number of pairs.
    """

    rows: Array
    pairs: Array
    steps: Array


class Panel(NamedTuple):
    """Consecutive groups of one row of the batch.

    Attributes:
        row: int32 scalar, the row.
        first: int32 scalar, the first group.
        groups: number of groups, static.
    """

    row: Array
    first: Array
    groups: int


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
    """Whether one schedule of ``batch`` rows of ``n`` blocks fits into scalar memory, with two words for each pair."""
    return 8 * batch * max_pairs(n, causal) <= SCALAR_BYTES


def groups_per_panel(n: int) -> int:
    """Groups of a panel of a row of ``n`` blocks: nearly equal panels, as few as scalar memory allows.

    Raises:
        ValueError: if a row has more blocks than a packed word can count.
    """
    if n > MAX_BLOCKS:
        raise ValueError(f"a sequence has {n:,} blocks, and the kernels number {MAX_BLOCKS:,}")
    panels = -(-n // max(SCALAR_BYTES // (8 * n), 1))
    return -(-n // panels)


def panels(batch: int, n: int) -> tuple[Array, Array]:
    """Rows and first groups of all panels, two int32 vectors.

    The last panel of a row begins early enough to be as long as the others. It computes a few groups again, fewer than
    there are panels.
    """
    groups = groups_per_panel(n)
    first = jnp.minimum(jnp.arange(0, n, groups, dtype=jnp.int32), n - groups)
    return jnp.repeat(jnp.arange(batch, dtype=jnp.int32), first.size), jnp.tile(first, batch)


def schedule_pairs(
    exit_BS: Array,
    block: int,
    group: Literal["query", "key"],
    start_BS: Array | None = None,
    panel: Panel | None = None,
) -> PairSchedule:
    """Schedules the visible pairs of blocks.

    Args:
        exit_BS: int32, at most S; S is a multiple of ``block``.
        block: tokens of a block.
        group: which block the pairs of a group share; groups are in rising order.
        start_BS: int32, first query that sees a key; None is causal.
        panel: groups of one row; None schedules all groups of all rows.
    """
    batch, length = exit_BS.shape
    n = length // block
    row, first, groups = panel or (0, 0, n)
    if panel is not None:
        exit_BS, start_BS = (None if x is None else lax.dynamic_slice_in_dim(x, row, 1) for x in (exit_BS, start_BS))
    visible_BGN, pairs_BGN = _visible(exit_BS, block, start_BS, group=group, first=first, groups=groups)
    row_B1 = row + jnp.arange(exit_BS.shape[0], dtype=jnp.int32)[:, None]
    group_BG1 = (row_B1 * n + first + jnp.arange(groups, dtype=jnp.int32))[:, :, None]
    # The sort is stable: the visible pairs move to the front and keep their order.
    sorted_pairs = lax.sort((jnp.where(visible_BGN, group_BG1, batch * n).ravel(), pairs_BGN.ravel()), num_keys=1)
    most = groups * n if panel is not None else batch * max_pairs(n, start_BS is None)
    group_T, pairs_T = (x[:most] for x in sorted_pairs)
    first_T, last_T = jnp.diff(group_T, prepend=-1) != 0, jnp.diff(group_T, append=-1) != 0
    return PairSchedule(group_T // n, pairs_T | first_T * _FIRST | last_T * _LAST, visible_BGN.sum(dtype=jnp.int32))


def unpack(word: Array) -> BlockPair:
    """Unpacks a scalar of ``PairSchedule.pairs``."""
    query, key = word >> _QUERY_SHIFT, word >> _KEY_SHIFT & MAX_BLOCKS
    return BlockPair(query, key, word & _FULL != 0, word & _FIRST != 0, word & _LAST != 0)


def whole_blocks(exit: Array | None, batch: int, length: int, block: int) -> Array:
    """Pads exits or starts to a whole number of blocks, int32 and at most S; no query sees a padded token's exit of 0.

    No exits are those of one sequence.
    """
    if exit is None:
        exit = jnp.full((batch, length), length)
    return jnp.pad(jnp.minimum(exit, length).astype(jnp.int32), ((0, 0), (0, -length % block)))


def _visible(
    exit_BS: Array, block: int, start_BS: Array | None, *, group: str, first: Array | int, groups: int
) -> tuple[Array, Array]:
    """Two arrays ``[B, groups, blocks]`` of consecutive groups: whether a pair is scheduled, and its packed word."""
    shape_BNb = (exit_BS.shape[0], exit_BS.shape[1] // block, block)
    own_G1 = (first + jnp.arange(groups, dtype=jnp.int32))[:, None]
    other_N = jnp.arange(shape_BNb[1], dtype=jnp.int32)
    query, key = (own_G1, other_N) if group == "query" else (other_N, own_G1)

    def of_keys(x_BN: Array) -> Array:
        if group == "query":
            return x_BN[:, None]
        return lax.dynamic_slice_in_dim(x_BN, first, groups, 1)[:, :, None]

    exit_BNb = exit_BS.reshape(shape_BNb)
    latest, earliest = of_keys(exit_BNb.max(-1)), of_keys(exit_BNb.min(-1))
    if start_BS is None:
        may = starts = key < query
    else:
        start_BNb = start_BS.reshape(shape_BNb)
        may = of_keys(start_BNb.min(-1)) < (query + 1) * block
        starts = of_keys(start_BNb.max(-1)) <= query * block
    seen_BGN = may & (latest > query * block)
    full_BGN = starts & (earliest >= (query + 1) * block)
    return seen_BGN | (key == query), query << _QUERY_SHIFT | key << _KEY_SHIFT | full_BGN * _FULL
