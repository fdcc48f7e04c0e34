"""The backends that send a token only to the ranks that own one of its experts: ``a2a``, ``ragged`` and ``dma``.

Rows from peer p arrive in slots ``[p * C, p * C + count)``, R = P * C. Ids and gates travel in an all-to-all of all
slots, 8 K bytes each (a row of D = 7168 bfloat16 numbers has 14336). Rows travel in one of three ways:

- ``a2a``: ``lax.all_to_all`` of all slots, used or not: P * C rows whatever the routing;
- ``ragged``: ``lax.ragged_all_to_all`` of the rows in use (not on XLA:CPU);
- ``dma``: a Pallas kernel that sends the rows in use, in groups of 16.
"""

from __future__ import annotations

import jax
from jax import lax
import jax.numpy as jnp

from pallas_kernels.expert_exchange.dma import RowRanges, exchange_rows
from pallas_kernels.expert_exchange.plan import NOWHERE, plan_exchange
from pallas_kernels.expert_exchange.route import AllToAllPlan, ExchangeSettings, Route, pack, unpack_local
from pallas_kernels.ops import take
from pallas_kernels.vma import vary_together

# Tokens whose returned rows are gathered at a time: 59 MB of 8 rows each at D = 7168 in bfloat16.
_TOKEN_BLOCK = 512


def plan_route(exchange: ExchangeSettings, expert_ids_TK: jax.Array, gates_TK: jax.Array):
    """Plans the destinations of rows, and sends ids, gates, starts and counts.

    Returns:
        (route, local ids ``[R, K]``, gates ``[R, K]``)
    """
    packed = exchange.backend != "a2a"
    rows = plan_exchange(expert_ids_TK, exchange.experts, exchange.ranks, exchange.slots, packed=packed)
    ids_PCK = take(expert_ids_TK, rows.token_of_slot_PC, fill=exchange.experts)
    gates_PCK = take(gates_TK, rows.token_of_slot_PC)
    ids_RK, gates_RK = unpack_local(exchange, _swap_choices(exchange, pack(ids_PCK, gates_PCK)))
    peer_ranges_P2 = _swap(exchange, jnp.stack([rows.start_P, rows.count_P], axis=1)) if packed else None
    return Route(exchange, AllToAllPlan(rows, peer_ranges_P2), rows.dropped), ids_RK, gates_RK


def send_rows(route: Route, x_TD: jax.Array) -> jax.Array:
    """Sends tokens to the ranks of their experts.

    Returns:
        ``[R, D]``; slots that received no row hold arbitrary values.
    """
    exchange, (rows, peer_ranges_P2) = route.exchange, route.plan
    rows_ND = take(x_TD, rows.token_of_row_N)
    if peer_ranges_P2 is None:
        return _swap(exchange, rows_ND)
    own_slots_P = jnp.full_like(rows.start_P, lax.axis_index(exchange.axis_name) * exchange.slots)
    ranges = RowRanges(rows.start_P, rows.count_P, own_slots_P, peer_ranges_P2[:, 1])
    return _swap_ranges(exchange, rows_ND, exchange.ranks * exchange.slots, ranges)


def return_rows(route: Route, y_RD: jax.Array) -> jax.Array:
    """Sends rows back to the ranks of their tokens.

    Returns:
        Each token's sum over its rows, ``[T, D]`` in the dtype of the rows.
    """
    exchange, (rows, peer_ranges_P2) = route.exchange, route.plan
    if peer_ranges_P2 is None:
        rows_ND = _swap(exchange, y_RD)
    else:
        slot_P = jnp.arange(exchange.ranks, dtype=jnp.int32) * exchange.slots
        ranges = RowRanges(slot_P, peer_ranges_P2[:, 1], peer_ranges_P2[:, 0], rows.count_P)
        rows_ND = _swap_ranges(exchange, y_RD, rows.token_of_row_N.size, ranges)
    return _sum_rows(rows_ND, rows.place_TJ)


def return_gates(route: Route, dgates_RK: jax.Array) -> jax.Array:
    """Returns the cotangents of the gates to the ranks of their tokens, ``[T, K]``."""
    exchange, slot_TK = route.exchange, route.plan.rows.slot_of_choice_TK
    returned_RK = _swap_choices(exchange, dgates_RK.reshape(exchange.ranks, exchange.slots, -1))
    choice_K = jnp.arange(slot_TK.shape[1])
    return returned_RK.at[slot_TK, choice_K].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def _sum_rows(rows_ND, place_TJ):
    """Sums each token's rows in float32, a block of tokens at a time, so that ``[T, J, D]`` is never held in memory."""
    tokens = place_TJ.shape[0]
    block = min(max(1, tokens), _TOKEN_BLOCK)
    place_TJ = jnp.pad(place_TJ, ((0, -tokens % block), (0, 0)), constant_values=NOWHERE)

    def sum_block(place_BJ):
        rows_JBD = take(rows_ND, place_BJ.T)
        return jnp.sum(rows_JBD, axis=0, dtype=jnp.promote_types(rows_ND.dtype, jnp.float32)).astype(rows_ND.dtype)

    y_NBD = lax.map(sum_block, place_TJ.reshape(-1, block, place_TJ.shape[1]))
    return y_NBD.reshape(-1, rows_ND.shape[1])[:tokens]


def _swap(exchange, array_R):
    """Exchanges the P equal parts of the rows: part p comes from rank p, which receives this rank's part p."""
    return lax.all_to_all(array_R, exchange.axis_name, 0, 0, tiled=True)


def _swap_choices(exchange, choices_PCK):
    """Exchanges a few numbers for each slot's choices; returns ``[R, K]``."""
    # A TPU pads the last dimension to 128, so slots are put last, not choices.
    received_PKC = _swap(exchange, choices_PCK.swapaxes(1, 2))
    return received_PKC.swapaxes(1, 2).reshape(-1, choices_PCK.shape[2])


def _swap_ranges(exchange, rows_ND, out_rows, ranges: RowRanges):
    """Writes ranges of rows into the buffers of the peers, which have ``out_rows`` rows."""
    if exchange.backend == "dma":
        return exchange_rows(rows_ND, out_rows, ranges, axis_name=exchange.axis_name, interpret=exchange.interpret)
    empty_RD = lax.empty((out_rows, rows_ND.shape[1]), rows_ND.dtype)
    rows_ND, out_RD = vary_together(rows_ND, empty_RD, axes=(exchange.axis_name,))
    return lax.ragged_all_to_all(rows_ND, out_RD, *ranges, axis_name=exchange.axis_name)
