"""The plan of an exchange: integers that say which rows a rank sends to each peer, and where they lie.

A token has one row for each rank that owns at least one of its experts. The plan maps rows to tokens and tokens to
rows, so that rows are only ever gathered: into the buffer that is sent, and from the buffer that comes back.

Rows are sorted by peer and, for one peer, by token; those for peer p start at row ``start_P[p]``. Collectives with
equal parts (``a2a``) need ``start_P[p] = p * C``. Others (``ragged``, ``dma``) take a packed buffer, in which the peers
follow each other on whole groups of rows: about T * min(K, P) rows instead of P * T.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from pallas_kernels.ops import take

# Rows of one bfloat16 tile (two float32 tiles): the least that a DMA moves. Every range of rows starts at a multiple.
ROW_GROUP = 16
NOWHERE = 2**31 - 1  # index outside any buffer


class ExchangePlan(NamedTuple):
    """Destinations of the rows of T tokens with K choices, with C slots for each of P peers; all arrays are int32.

    A place is a row of the sent buffer of N rows, or ``NOWHERE``.

    Attributes:
        token_of_slot_PC: token in each peer's slots; T for an empty slot.
        token_of_row_N: token of each row of the sent buffer; T for an unused row.
        place_TJ: places of each token's rows, at most J = min(K, P) of them.
        slot_of_choice_TK: slot (peer * C + index) in which the gate of each choice travels.
        start_P: first row for each peer.
        count_P: number of rows for each peer.
        dropped: ``[]``, number of rows that found no slot.
    """

    token_of_slot_PC: jax.Array
    token_of_row_N: jax.Array
    place_TJ: jax.Array
    slot_of_choice_TK: jax.Array
    start_P: jax.Array
    count_P: jax.Array
    dropped: jax.Array


def plan_exchange(expert_ids_TK: jax.Array, experts: int, ranks: int, slots: int, *, packed: bool) -> ExchangePlan:
    """Plans which rows of this rank's tokens go to which ranks.

    Args:
        expert_ids_TK: int32 in [0, experts], ids among all experts; ``experts`` means no expert.
        experts: E, a multiple of ``ranks``.
        ranks: P.
        slots: C.
        packed: whether the sent buffer is packed, instead of C rows for each peer.
    """
    tokens, active = expert_ids_TK.shape
    token_T, peer_P = jnp.arange(tokens, dtype=jnp.int32), jnp.arange(ranks, dtype=jnp.int32)
    owner_TK = expert_ids_TK // (experts // ranks)
    sent_PT = jnp.any(owner_TK == peer_P[:, None, None], axis=-1)
    index_PT = jnp.cumsum(sent_PT, axis=1, dtype=jnp.int32) - 1
    needed_P = jnp.sum(sent_PT, axis=1, dtype=jnp.int32)
    count_P = jnp.minimum(needed_P, slots)
    start_P = _packed_starts(count_P) if packed else peer_P * slots

    # Sorting moves the tokens of each peer to the front. A TPU would run a scatter one element at a time.
    token_of_slot_PC = jnp.sort(jnp.where(sent_PT, token_T, tokens), axis=1)[:, :slots]
    token_of_slot_PC = jnp.pad(token_of_slot_PC, ((0, 0), (0, max(0, slots - tokens))), constant_values=tokens)
    fits_PT = sent_PT & (index_PT < slots)
    place_PT = jnp.where(fits_PT, start_P[:, None] + index_PT, NOWHERE)
    slot_PT = jnp.where(fits_PT, peer_P[:, None] * slots + index_PT, NOWHERE)
    rows = sent_rows(tokens, active, ranks, slots) if packed else ranks * slots
    plan = ExchangePlan(
        token_of_slot_PC=token_of_slot_PC,
        token_of_row_N=_tokens_of_rows(rows, token_of_slot_PC, start_P, tokens),
        place_TJ=jnp.sort(place_PT.T, axis=1)[:, : min(active, ranks)],
        slot_of_choice_TK=take(slot_PT.reshape(-1), _index_in_PT(owner_TK, token_T, ranks), fill=NOWHERE),
        start_P=start_P,
        count_P=count_P,
        dropped=jnp.sum(needed_P - count_P, dtype=jnp.int32),
    )
    # Keeps XLA from recomputing small integers for every element of the row gathers that read them.
    return lax.optimization_barrier(plan)


def row_groups(rows):
    """Rounds a number of rows up to whole groups of ``ROW_GROUP``; takes Python ints, NumPy and JAX arrays."""
    return -(-rows // ROW_GROUP) * ROW_GROUP


def sent_rows(tokens: int, active: int, ranks: int, slots: int) -> int:
    """Rows of a packed buffer for any routing: min(K, P) for each token, and less than a group for each peer."""
    bound = row_groups(tokens * min(active, ranks) + ranks * (ROW_GROUP - 1))
    return min(bound, ranks * slots)


def _packed_starts(count_P):
    whole_P = row_groups(count_P)
    return jnp.cumsum(whole_P, dtype=jnp.int32) - whole_P


def _tokens_of_rows(rows, token_of_slot_PC, start_P, tokens):
    """Token of each row, looked up in the slots of the last peer whose rows start at or before it."""
    slots = token_of_slot_PC.shape[1]
    row_N = jnp.arange(rows, dtype=jnp.int32)
    peer_N = jnp.sum(start_P[:, None] <= row_N, axis=0, dtype=jnp.int32) - 1
    index_N = row_N - start_P[peer_N]
    slot_N = jnp.where(index_N < slots, peer_N * slots + index_N, NOWHERE)
    return take(token_of_slot_PC.reshape(-1), slot_N, fill=tokens)


def _index_in_PT(owner_TK, token_T, ranks):
    """Index of each choice in a flattened ``[P, T]`` array; ``NOWHERE`` for choices without an expert."""
    tokens = token_T.size
    return jnp.where(owner_TK < ranks, owner_TK * tokens + token_T[:, None], NOWHERE)
