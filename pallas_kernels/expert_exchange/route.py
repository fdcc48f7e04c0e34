"""The records that dispatch and combine share: settings of an exchange, and the route that its rows took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
from jax import lax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.expert_exchange.plan import ExchangePlan


class ExchangeSettings(NamedTuple):
    """Static settings of an exchange.

    Attributes:
        backend: ``dense``, ``a2a``, ``ragged`` or ``dma``.
        axis_name: mesh axis of the ranks.
        experts: E, over all ranks.
        ranks: P.
        slots: C, the most rows from one rank to another; all tokens for ``dense``.
        interpret: parameters of the interpreter, or False to compile the kernel.
    """

    backend: str
    axis_name: str
    experts: int
    ranks: int
    slots: int
    interpret: bool | pltpu.InterpretParams

    @property
    def local_experts(self) -> int:
        """Number of experts on one rank."""
        return self.experts // self.ranks


class AllToAllPlan(NamedTuple):
    """Plan of the rows that this rank sends, and the ranges of its rows in the peers' buffers.

    Attributes:
        rows: rows that this rank sends.
        peer_ranges_P2: int32, for each peer the first row and the number of rows that it sends to this rank; None if
            all buffers have the same form.
    """

    rows: ExchangePlan
    peer_ranges_P2: jax.Array | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Route:
    """The route of the rows that ``expert_dispatch`` sent, as ``expert_combine`` needs it.

    Attributes:
        exchange: settings.
        plan: bool ``[R, K]``, which choices belong to this rank's experts (``dense``), or an AllToAllPlan.
        dropped: int32 ``[]``, rows of this rank that found no slot; a token has one row for each rank of its experts.
    """

    exchange: ExchangeSettings = field(metadata={"static": True})
    plan: jax.Array | AllToAllPlan
    dropped: jax.Array


def pack(ids_K: jax.Array, gates_K: jax.Array) -> jax.Array:
    """Joins ids and gates ``[..., K]`` into one int32 array ``[..., 2K]``, so that one collective sends both."""
    return jnp.concatenate([ids_K, lax.bitcast_convert_type(gates_K, jnp.int32)], axis=-1)


def unpack_local(exchange: ExchangeSettings, packed_R2K: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Splits received choices into ids and gates, and removes those of other ranks' experts.

    Returns:
        (int32 ids among this rank's experts ``[R, K]``, E / P for other experts; float32 gates ``[R, K]``)
    """
    ids_RK, bits_RK = jnp.split(packed_R2K, 2, axis=-1)
    ids_RK -= lax.axis_index(exchange.axis_name) * exchange.local_experts
    local_RK = (ids_RK >= 0) & (ids_RK < exchange.local_experts)
    gates_RK = jnp.where(local_RK, lax.bitcast_convert_type(bits_RK, jnp.float32), 0)
    return jnp.where(local_RK, ids_RK, exchange.local_experts), gates_RK
