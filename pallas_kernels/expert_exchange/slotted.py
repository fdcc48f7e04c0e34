"""The backends in which a token is sent only to the ranks that own one of its experts: `a2a`, `ragged` and `dma`.

What arrives from peer p lies in slots `[p * C, p * C + count)`, R = P * C. Ids and gates travel in an all-to-all of all
slots, 8 K bytes each (a row of D = 7168 bfloat16 has 14336); rows in one of three ways:

- `a2a`: `lax.all_to_all` of all slots, used or not: P * C rows whatever the routing;
- `ragged`: `lax.ragged_all_to_all` of the rows there are (not on XLA:CPU);
- `dma`: the same by a Pallas kernel, in groups of 16 rows.
"""

from __future__ import annotations

import jax
from jax import lax
import jax.numpy as jnp

from pallas_kernels.expert_exchange.dma import exchange_rows
from pallas_kernels.expert_exchange.plan import NOWHERE, make_plan, take
from pallas_kernels.expert_exchange.route import Exchange, Route, SlottedPlan, pack, unpack_local
from pallas_kernels.varying import vary_together

# Tokens whose returned rows are gathered at a time: 59 MB of 8 rows each at D = 7168 in bfloat16.
_TOKEN_BLOCK = 512


def plan_route(exchange: Exchange, expert_ids_TK: jax.Array, gates_TK: jax.Array):
    """Plan which rows go where, and send ids, gates, starts and counts.

    Returns:
        (route, local ids [R, K], gates [R, K])
    """
    packed = exchange.backend != "a2a"
    plan = make_plan(expert_ids_TK, exchange.experts, exchange.ranks, exchange.slots, packed=packed)
    ids_PCK = take(expert_ids_TK, plan.token_of_slot_PC, fill=exchange.experts)
    gates_PCK = take(gates_TK, plan.token_of_slot_PC)
    ids_RK, gates_RK = unpack_local(exchange, _swap_choices(exchange, pack(ids_PCK, gates_PCK)))
    ranges_P2 = _swap(exchange, jnp.stack([plan.start_P, plan.count_P], axis=1)) if packed else None
    return Route(exchange, SlottedPlan(plan, ranges_P2), plan.dropped), ids_RK, gates_RK


def send_rows(route: Route, x_TD: jax.Array) -> jax.Array:
    """Send tokens' rows to the ranks of their experts; returns [R, D], with anything in slots that no row took."""
    exchange, (plan, ranges_P2) = route.exchange, route.plan
    rows_ND = take(x_TD, plan.token_of_row_N)
    if ranges_P2 is None:
        return _swap(exchange, rows_ND)
    here_P = jnp.full_like(plan.start_P, lax.axis_index(exchange.axis_name) * exchange.slots)
    ranges = plan.start_P, plan.count_P, here_P, ranges_P2[:, 1]
    return _swap_ranges(exchange, rows_ND, exchange.ranks * exchange.slots, *ranges)


def return_rows(route: Route, y_RD: jax.Array) -> jax.Array:
    """Send rows back to where they came from; returns each token's sum, [T, D] in the dtype of the rows."""
    exchange, (plan, ranges_P2) = route.exchange, route.plan
    if ranges_P2 is None:
        rows_ND = _swap(exchange, y_RD)
    else:
        slot_P = jnp.arange(exchange.ranks, dtype=jnp.int32) * exchange.slots
        ranges = slot_P, ranges_P2[:, 1], ranges_P2[:, 0], plan.count_P
        rows_ND = _swap_ranges(exchange, y_RD, plan.token_of_row_N.size, *ranges)
    return _sum_rows(rows_ND, plan.place_TJ)


def return_gates(route: Route, dgates_RK: jax.Array) -> jax.Array:
    """Return the gates' cotangents to their tokens, [T, K]."""
    exchange, slot_TK = route.exchange, route.plan.plan.slot_of_choice_TK
    back_RK = _swap_choices(exchange, dgates_RK.reshape(exchange.ranks, exchange.slots, -1))
    choice_K = jnp.arange(slot_TK.shape[1])
    return back_RK.at[slot_TK, choice_K].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def _sum_rows(rows_ND, place_TJ):
    """Sum each token's rows in float32, tokens by blocks: [T, J, D] is never held, and the gather is compiled once."""
    tokens = place_TJ.shape[0]
    block = min(tokens, _TOKEN_BLOCK)
    place_TJ = jnp.pad(place_TJ, ((0, -tokens % block), (0, 0)), constant_values=NOWHERE)

    def one_block(place_BJ):
        rows_JBD = take(rows_ND, place_BJ.T)
        return jnp.sum(rows_JBD, axis=0, dtype=jnp.promote_types(rows_ND.dtype, jnp.float32)).astype(rows_ND.dtype)

    y_NBD = lax.map(one_block, place_TJ.reshape(-1, block, place_TJ.shape[1]))
    return y_NBD.reshape(-1, rows_ND.shape[1])[:tokens]


def _swap(exchange, array_R):
    """Exchange the P equal parts of the rows: part p comes from rank p, which gets this rank's part p."""
    return lax.all_to_all(array_R, exchange.axis_name, 0, 0, tiled=True)


def _swap_choices(exchange, choices_PCK):
    """Exchange something small about each slot's choices; returns [R, K]."""
    # A TPU pads the last dimension to 128: slots belong there, not choices.
    received_PKC = _swap(exchange, choices_PCK.swapaxes(1, 2))
    return received_PKC.swapaxes(1, 2).reshape(-1, choices_PCK.shape[2])


def _swap_ranges(exchange, rows_ND, out_rows, send_start_P, send_count_P, write_start_P, receive_count_P):
    """Write ranges of rows into the peers' outputs; arguments as of `exchange_rows`."""
    ranges = send_start_P, send_count_P, write_start_P, receive_count_P
    if exchange.backend == "dma":
        return exchange_rows(rows_ND, out_rows, *ranges, axis_name=exchange.axis_name, interpret=exchange.interpret)
    empty_RD = lax.empty((out_rows, rows_ND.shape[1]), rows_ND.dtype)
    rows_ND, out_RD = vary_together(rows_ND, empty_RD, axes=(exchange.axis_name,))
    return lax.ragged_all_to_all(rows_ND, out_RD, *ranges, axis_name=exchange.axis_name)
