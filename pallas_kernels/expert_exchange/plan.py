"""Which rows a rank sends to which peer and where they lie, and the way back: integers only.

A row goes to each rank that owns at least one of its token's experts, once. The plan maps rows to tokens and tokens to
rows, so that rows are only ever gathered: into the buffer that is sent, and out of the buffer that comes back.

Sent rows lie by peer, in the order of their tokens, from row `start_P[p]` on: at `p * C` where a collective wants equal
parts (`a2a`), or one peer right after the other, on whole groups of rows, where it takes any (`ragged`, `dma`). Packed,
the buffer holds about T * min(K, P) rows instead of P * T.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

# Rows of one tile of bfloat16 (two float32 tiles): what a DMA moves at least, and what every range of rows starts on.
ROW_GROUP = 16
NOWHERE = 2**31 - 1


class Plan(NamedTuple):
    """Where the rows of T tokens with K choices go, with C slots for each of P peers; every array is int32.

    A place is a row of the buffer of N rows that is sent, `NOWHERE` where there is none.
    """

    token_of_slot_PC: jax.Array  # the token in each peer's slot; T where the slot is empty
    token_of_row_N: jax.Array  # the same for the rows of the sent buffer
    place_TJ: jax.Array  # each token's rows, J = min(K, P) of them at most
    slot_of_choice_TK: jax.Array  # the slot (peer * C + index) in which each choice's gate travels
    start_P: jax.Array  # the first row to each peer
    count_P: jax.Array  # the rows to each peer
    dropped: jax.Array  # [], the rows that found no slot


def make_plan(expert_ids_TK: jax.Array, experts: int, ranks: int, slots: int, *, packed: bool) -> Plan:
    """Plan the sending of tokens with global ids `expert_ids_TK` (int32, in [0, experts]) to `ranks` ranks."""
    tokens, active = expert_ids_TK.shape
    token_T, peer_P = jnp.arange(tokens, dtype=jnp.int32), jnp.arange(ranks, dtype=jnp.int32)
    owner_TK = expert_ids_TK // (experts // ranks)
    sent_PT = jnp.any(owner_TK == peer_P[:, None, None], axis=-1)
    index_PT = jnp.cumsum(sent_PT, axis=1, dtype=jnp.int32) - 1
    wanted_P = jnp.sum(sent_PT, axis=1, dtype=jnp.int32)
    count_P = jnp.minimum(wanted_P, slots)
    start_P = _packed_starts(count_P) if packed else peer_P * slots

    # Sorting brings the tokens of each peer to the front: no scatter, which a TPU runs one element at a time.
    token_of_slot_PC = jnp.sort(jnp.where(sent_PT, token_T, tokens), axis=1)[:, :slots]
    token_of_slot_PC = jnp.pad(token_of_slot_PC, ((0, 0), (0, max(0, slots - tokens))), constant_values=tokens)
    fits_PT = sent_PT & (index_PT < slots)
    place_PT = jnp.where(fits_PT, start_P[:, None] + index_PT, NOWHERE)
    slot_PT = jnp.where(fits_PT, peer_P[:, None] * slots + index_PT, NOWHERE)
    rows = sent_rows(tokens, active, ranks, slots) if packed else ranks * slots
    plan = Plan(
        token_of_slot_PC=token_of_slot_PC,
        token_of_row_N=_tokens_of_rows(rows, token_of_slot_PC, start_P, tokens),
        place_TJ=jnp.sort(place_PT.T, axis=1)[:, : min(active, ranks)],
        slot_of_choice_TK=take(slot_PT.reshape(-1), _flat(owner_TK, token_T, ranks), fill=NOWHERE),
        start_P=start_P,
        count_P=count_P,
        dropped=jnp.sum(wanted_P - count_P, dtype=jnp.int32),
    )
    # Keeps XLA from recomputing small integers for every element of the row gathers that read them.
    return lax.optimization_barrier(plan)


def row_groups(rows):
    """Round a number of rows up to whole groups; for Python ints, NumPy and JAX arrays."""
    return -(-rows // ROW_GROUP) * ROW_GROUP


def sent_rows(tokens: int, active: int, ranks: int, slots: int) -> int:
    """Rows that hold whatever a rank sends when packed: a token goes to min(K, P) ranks, each peer wastes < 1 group."""
    most = row_groups(tokens * min(active, ranks) + ranks * (ROW_GROUP - 1))
    return min(most, ranks * slots)


def take(array: jax.Array, index: jax.Array, fill: float = 0) -> jax.Array:
    """Gather rows `array[index]`; where the index is outside the array the row is `fill`."""
    return array.at[index].get(mode="fill", fill_value=fill, wrap_negative_indices=False)


def _packed_starts(count_P):
    whole_P = row_groups(count_P)
    return jnp.cumsum(whole_P, dtype=jnp.int32) - whole_P


def _tokens_of_rows(rows, token_of_slot_PC, start_P, tokens):
    """Look up the token of each row: that of its place among the slots of the last peer that starts before it."""
    slots = token_of_slot_PC.shape[1]
    row_N = jnp.arange(rows, dtype=jnp.int32)
    peer_N = jnp.sum(start_P[:, None] <= row_N, axis=0, dtype=jnp.int32) - 1
    index_N = row_N - start_P[peer_N]
    slot_N = jnp.where(index_N < slots, peer_N * slots + index_N, NOWHERE)
    return take(token_of_slot_PC.reshape(-1), slot_N, fill=tokens)


def _flat(owner_TK, token_T, ranks):
    tokens = token_T.size
    return jnp.where(owner_TK < ranks, owner_TK * tokens + token_T[:, None], NOWHERE)
