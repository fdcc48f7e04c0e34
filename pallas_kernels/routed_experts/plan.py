"""Capacity plan of the plain JAX path: each copy's row, in a slot of its expert's capacity or in an overflow block.

A plan consists of integers only. It maps places to copies and copies to places, so that every permutation of rows,
forward or backward, is a gather. Copy n = t * K + k is the k-th expert choice of token t.
"""

import math
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from pallas_kernels.ops import take

CAPACITY_FACTOR = 1.06
"""Default capacity of an expert over its mean count: copies beyond it take the slower path of the overflow blocks."""

# Rows of an unrolled matmul tile. Capacities are multiples of it, so that no matmul has a partial tile.
_ROW_MULTIPLE = 8

_COMPARED = 1 << 14  # copies times experts


class CapacityPlan(NamedTuple):
    """Rows of the copies of T tokens with K of E experts and capacity C; all arrays are int32.

    A place in [0, E * C) is the slot ``expert * C + rank``. A place from E * C on is a row of an overflow block,
    counted over all blocks. The place of a copy without an expert is beyond any row.

    Attributes:
        copy_of_slot_EC: copy in each slot; T * K for an empty slot.
        place_of_copy_TK: place of each copy.
        copy_sorted_N: copies in the order of their experts.
        start_E: first sorted position of each expert.
        count_E: number of copies of each expert.
        block_end_E: number of overflow blocks of this expert and all before it.
    """

    copy_of_slot_EC: jax.Array
    place_of_copy_TK: jax.Array
    copy_sorted_N: jax.Array
    start_E: jax.Array
    count_E: jax.Array
    block_end_E: jax.Array

    @property
    def blocks(self) -> jax.Array:
        """Number of overflow blocks, int32 ``[]``."""
        return self.block_end_E[-1]

    def overflow_place(self, first: jax.Array, block: int) -> jax.Array:
        """Rows of the copies, counted from overflow block ``first``; int32 ``[T, K]``, negative before that block."""
        return self.place_of_copy_TK - self.copy_of_slot_EC.size - first * block


def capacity(copies: int, experts: int, factor: float) -> int:
    """Slots of an expert: ``factor`` times the mean count, at most all copies, rounded up to a multiple of 8."""
    rounded = -(-math.ceil(factor * copies / experts) // _ROW_MULTIPLE) * _ROW_MULTIPLE
    return max(_ROW_MULTIPLE, min(rounded, -(-copies // _ROW_MULTIPLE) * _ROW_MULTIPLE))


def expert_counts(expert_ids: jax.Array, experts: int) -> jax.Array:
    """Counts the copies of each expert.

    Args:
        expert_ids: int32 of any shape, in [0, experts]; the id ``experts`` (no expert) is not counted.
        experts: E, number of experts.

    Returns:
        int32 ``[E]``.
    """
    # A scatter of scalars into E bins: on a CPU faster than comparing every id with every expert.
    return jnp.zeros((experts,), jnp.int32).at[expert_ids.reshape(-1)].add(1, mode="drop")


def sort_copies(expert_ids_N: jax.Array, experts: int) -> tuple[jax.Array, jax.Array]:
    """Sorts copies by expert; the sort is stable.

    Returns:
        (expert_sorted_N, copy_sorted_N), both int32
    """
    copies = expert_ids_N.size
    index_N = jnp.arange(copies, dtype=jnp.int32)
    if (experts + 1) * copies > jnp.iinfo(jnp.int32).max:
        return tuple(lax.sort((expert_ids_N, index_N), num_keys=1, is_stable=True))
    # Sorting packed keys is four times faster on a CPU than sorting pairs.
    key_N = lax.sort(expert_ids_N * copies + index_N)
    return key_N // copies, key_N % copies


def first_positions(expert_sorted_N: jax.Array, experts: int) -> jax.Array:
    """Position of the first copy of each expert; int32 ``[E + 1]``, the last is the number of copies with an expert."""
    # Few copies are compared with every expert at once: the steps of a binary search cost a CPU more than they save.
    method = "compare_all" if expert_sorted_N.size * experts <= _COMPARED else "scan"
    bounds = jnp.arange(experts + 1, dtype=jnp.int32)
    return jnp.searchsorted(expert_sorted_N, bounds, method=method).astype(jnp.int32)


def plan_capacity(expert_ids_TK: jax.Array, experts: int, slots: int, block: int) -> CapacityPlan:
    """Plans the rows of all copies.

    Args:
        expert_ids_TK: int32 in [0, experts]; ``experts`` means no expert.
        experts: E.
        slots: C, slots of an expert.
        block: rows of an overflow block.
    """
    copies = expert_ids_TK.size
    expert_N, copy_N = sort_copies(expert_ids_TK.reshape(-1), experts)
    edge = first_positions(expert_N, experts)
    start_E, count_E = edge[:-1], edge[1:] - edge[:-1]
    block_end_E = jnp.cumsum(-(-jnp.maximum(count_E - slots, 0) // block), dtype=jnp.int32)

    rank_C = jnp.arange(slots, dtype=jnp.int32)
    position_EC = jnp.where(rank_C < count_E[:, None], start_E[:, None] + rank_C, copies)
    copy_of_slot_EC = take(copy_N, position_EC, fill=copies)

    # Copies without an expert have the id E, an additional expert without slots.
    block_start = jnp.concatenate([jnp.zeros((1,), jnp.int32), block_end_E])
    rank_N = jnp.arange(copies, dtype=jnp.int32) - edge[expert_N]
    overflow_N = experts * slots + block_start[expert_N] * block + rank_N - slots
    place_N = jnp.where(rank_N < slots, expert_N * slots + rank_N, overflow_N)
    place_N = jnp.where(expert_N < experts, place_N, jnp.iinfo(jnp.int32).max)
    place_of_copy_N = jnp.zeros_like(place_N).at[copy_N].set(place_N, unique_indices=True)
    place_of_copy_TK = place_of_copy_N.reshape(expert_ids_TK.shape)
    return materialize(CapacityPlan(copy_of_slot_EC, place_of_copy_TK, copy_N, start_E, count_E, block_end_E))


def copies_of_block(plan: CapacityPlan, index: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
    """Expert of overflow block ``index``, int32 ``[]``, and its copies, int32 ``[block]`` (T * K where empty)."""
    copies, slots = plan.copy_sorted_N.size, plan.copy_of_slot_EC.shape[1]
    expert = jnp.sum(plan.block_end_E <= index, dtype=jnp.int32)
    first = jnp.where(expert > 0, plan.block_end_E[expert - 1], 0)
    rank = slots + (index - first) * block + jnp.arange(block, dtype=jnp.int32)
    position = jnp.where(rank < plan.count_E[expert], plan.start_E[expert] + rank, copies)
    return materialize((expert, take(plan.copy_sorted_N, position, fill=copies)))


def tokens_of(copies: jax.Array, active: int) -> jax.Array:
    """Tokens of copies; T for the copy T * K."""
    return materialize(copies // active)


def materialize(indices):
    """Keeps XLA from recomputing small integers and gates for every element of the row gathers that read them."""
    return lax.optimization_barrier(indices)


def combine(rows_RD: jax.Array, place_TK: jax.Array, gates_TK: jax.Array | None = None) -> jax.Array:
    """Sums each token's K rows, times their gates if given; a place outside [0, R) adds 0. Returns ``[T, D]``."""
    total_TD = 0
    # The gathers, one for each choice, fuse into one pass over the tokens; ``[T, K, D]`` is never written.
    for k in range(place_TK.shape[1]):
        row_TD = take(rows_RD, place_TK[:, k])
        total_TD += row_TD if gates_TK is None else row_TD * gates_TK[:, k, None].astype(rows_RD.dtype)
    return total_TD
