"""The backends in which every rank sees every token: `dense` and `ring`.

The received rows are all tokens of all ranks, R = P * T, and nothing is planned. Going back, each rank adds its own
experts' part of each token, so the sum over ranks is a reduction, in float32.
"""

from __future__ import annotations

import jax
from jax import lax
import jax.numpy as jnp

from pallas_kernels.expert_exchange.route import Exchange, Route, pack, unpack_local


def plan_route(exchange: Exchange, expert_ids_TK: jax.Array, gates_TK: jax.Array):
    """Send ids and gates.

    Returns:
        (route, local ids [R, K], gates [R, K])
    """
    # A TPU pads the last dimension to 128: tokens belong there, not choices.
    packed_P2KT = _gather(exchange, pack(expert_ids_TK, gates_TK).T)
    ids_RK, gates_RK = unpack_local(exchange, _merge(packed_P2KT.swapaxes(1, 2)))
    return Route(exchange, ids_RK < exchange.local_experts, jnp.zeros_like(ids_RK[0, 0])), ids_RK, gates_RK


def send_rows(route: Route, x_TD: jax.Array) -> jax.Array:
    """Return the rows of all ranks, [R, D]."""
    return _merge(_gather(route.exchange, x_TD))


def return_rows(route: Route, y_RD: jax.Array) -> jax.Array:
    """Return each token's sum over the ranks that own one of its experts, [T, D] in the dtype of the rows."""
    used_R1 = jnp.any(route.plan, axis=1, keepdims=True)
    y_RD = jnp.where(used_R1, y_RD, 0)
    return _reduce(route.exchange, y_RD.astype(jnp.promote_types(y_RD.dtype, jnp.float32))).astype(y_RD.dtype)


def return_gates(route: Route, dgates_RK: jax.Array) -> jax.Array:
    """Return the gates' cotangents to their tokens, [T, K]."""
    return _reduce(route.exchange, jnp.where(route.plan, dgates_RK, 0))


def _gather(exchange, array):
    """Stack the arrays of all ranks: in their order (`dense`), or this rank's, its predecessor's and so on (`ring`)."""
    if exchange.backend == "dense":
        return lax.all_gather(array, exchange.axis_name)
    blocks = [array]
    for _ in range(exchange.ranks - 1):
        blocks.append(_to_successor(exchange, blocks[-1]))
    return jnp.stack(blocks)


def _reduce(exchange, array_R):
    """Sum over ranks what each has for this rank's rows: the transpose of `_gather`."""
    if exchange.backend == "dense":
        return lax.psum_scatter(array_R, exchange.axis_name, tiled=True)
    blocks = array_R.reshape(exchange.ranks, -1, *array_R.shape[1:])
    # Rank r starts the sum for its predecessor, which goes all the way round: each rank adds a block one further away.
    total = jnp.zeros_like(blocks[0])
    for block in blocks[1:]:
        total = _to_successor(exchange, total + block)
    return total + blocks[0]


def _to_successor(exchange, array):
    ranks = exchange.ranks
    return lax.ppermute(array, exchange.axis_name, [(rank, (rank + 1) % ranks) for rank in range(ranks)])


def _merge(array_PT):
    return array_PT.reshape(-1, *array_PT.shape[2:])
