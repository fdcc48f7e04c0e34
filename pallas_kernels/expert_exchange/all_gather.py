"""The ``dense`` backend: every rank receives every token.

The received rows are all tokens of all ranks, R = P * T, and nothing is planned. On the way back each rank holds its
own experts' share of every token, so the results are reduced over ranks, in float32.
"""

from __future__ import annotations

import jax
from jax import lax
import jax.numpy as jnp

from pallas_kernels.expert_exchange.route import ExchangeSettings, Route, pack, unpack_local
from pallas_kernels.vma import full


def plan_route(exchange: ExchangeSettings, expert_ids_TK: jax.Array, gates_TK: jax.Array):
    """Sends ids and gates to all ranks.

    Returns:
        (route, local ids ``[R, K]``, gates ``[R, K]``)
    """
    # A TPU pads the last dimension to 128, so tokens are put last, not choices.
    packed_P2KT = lax.all_gather(pack(expert_ids_TK, gates_TK).T, exchange.axis_name)
    ids_RK, gates_RK = unpack_local(exchange, _merge_ranks(packed_P2KT.swapaxes(1, 2)))
    return Route(exchange, ids_RK < exchange.local_experts, full((), 0, jnp.int32, ids_RK)), ids_RK, gates_RK


def send_rows(route: Route, x_TD: jax.Array) -> jax.Array:
    """Returns the rows of all ranks, ``[R, D]``."""
    return _merge_ranks(lax.all_gather(x_TD, route.exchange.axis_name))


def return_rows(route: Route, y_RD: jax.Array) -> jax.Array:
    """Returns each token's sum over the ranks that own one of its experts, ``[T, D]`` in the dtype of the rows."""
    used_R1 = jnp.any(route.plan, axis=1, keepdims=True)
    y_RD = jnp.where(used_R1, y_RD, 0)
    y_TD = _reduce(route.exchange, y_RD.astype(jnp.promote_types(y_RD.dtype, jnp.float32)))
    return y_TD.astype(y_RD.dtype)


def return_gates(route: Route, dgates_RK: jax.Array) -> jax.Array:
    """Returns the cotangents of the gates to the ranks of their tokens, ``[T, K]``."""
    return _reduce(route.exchange, jnp.where(route.plan, dgates_RK, 0))


def _reduce(exchange, array_R):
    """Sums the shares of all ranks; each rank keeps the sums of its own tokens."""
    if not array_R.shape[0]:  # XLA scatters no empty dimension
        return array_R
    return lax.psum_scatter(array_R, exchange.axis_name, tiled=True)


def _merge_ranks(array_PT):
    return array_PT.reshape(array_PT.shape[0] * array_PT.shape[1], *array_PT.shape[2:])
