"""What both halves of an exchange know: its settings, and the route its rows took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
from jax import lax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.expert_exchange.plan import Plan


class Exchange(NamedTuple):
    """What is static about an exchange."""

    backend: str
    axis_name: str
    experts: int  # E, over all ranks
    ranks: int  # P
    slots: int  # C, the rows from one rank to another; all tokens where every rank sees every token
    interpret: bool | pltpu.InterpretParams

    @property
    def local_experts(self) -> int:
        """The experts of one rank."""
        return self.experts // self.ranks


class SlottedPlan(NamedTuple):
    """A plan, and where this rank's part of each peer's buffer lies."""

    plan: Plan
    ranges_P2: jax.Array | None  # int32, the first row and the number of rows; None where all buffers are alike


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Route:
    """The way back for what `expert_dispatch` sent; fit for `expert_combine` only.

    Attributes:
        exchange: settings.
        plan: bool [R, K] (which choices are of this rank's experts) or a SlottedPlan.
        dropped: int32 [], how many rows of this rank, one for each token and rank it should go to, found no slot.
    """

    exchange: Exchange = field(metadata={"static": True})
    plan: jax.Array | SlottedPlan
    dropped: jax.Array


def pack(ids_K: jax.Array, gates_K: jax.Array) -> jax.Array:
    """Join ids and gates [..., K] to one int32 array [..., 2K], for one collective instead of two."""
    return jnp.concatenate([ids_K, lax.bitcast_convert_type(gates_K, jnp.int32)], axis=-1)


def unpack_local(exchange: Exchange, packed_R2K: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Split received choices into ids among this rank's experts [R, K], none for those of others, and gates [R, K]."""
    ids_RK, bits_RK = jnp.split(packed_R2K, 2, axis=-1)
    ids_RK -= lax.axis_index(exchange.axis_name) * exchange.local_experts
    mine_RK = (ids_RK >= 0) & (ids_RK < exchange.local_experts)
    gates_RK = jnp.where(mine_RK, lax.bitcast_convert_type(bits_RK, jnp.float32), 0)
    return jnp.where(mine_RK, ids_RK, exchange.local_experts), gates_RK
