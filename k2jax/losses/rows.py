"""Sums over the tokens, turns and branches of rows that are exact where devices share a row (mesh axis ``context``).

Inside a ``shard_map`` with ``check_vma`` the type of an array says whether it varies over ``context``: tokens do, since
each device holds some of a row's tokens; what was summed over a row does not, since every device has all of it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp

from k2jax.sharding import CONTEXT
from pallas_kernels.vma import vary_tree


class Rows(NamedTuple):
    """The rows of one micro-batch on one device.

    Attributes:
        exit_BS: int32, of PackedBatch; on a mesh, of this device's tokens.
        index_S: int32, the index in its row of each of these tokens.
    """

    exit_BS: Array
    index_S: Array

    def sum(self, values: Array) -> Array:
        """The sum ``[]`` over rows of values per token ``[B, S]``, or per turn or branch ``[B, N]``.

        On a mesh it is this device's share: what all devices of ``context`` hold is counted on the first of them.
        """
        if not _varies(self.exit_BS) or _varies(values):
            return values.sum()
        return jnp.where(lax.axis_index(CONTEXT) == 0, values.sum(), 0)

    def max(self, values: Array) -> Array:
        """The maximum ``[]`` over rows of values that are not negative, per token, turn or branch.

        On a mesh it is that of this device's part; the executors combine the maxima of all devices.
        """
        like = self.exit_BS if _varies(self.exit_BS) else values
        return vary_tree(values.max(), like=like)

    def segment_sum(self, values_BS: Array, ids_BS: Array, count: int) -> Array:
        """Sums per segment ``[B, count]`` of values per token, turn or branch; every device has those of the whole row.

        Args:
            values_BS: values per token, turn or branch.
            ids_BS: int32, the segment of each; those outside ``0 .. count - 1`` belong to none.
            count: segments of a row, unused ones included.
        """
        sums = jax.vmap(lambda values_S, ids_S: jax.ops.segment_sum(values_S, ids_S, num_segments=count))
        inside_BS = (ids_BS >= 0) & (ids_BS < count)
        return _over_row(sums(jnp.where(inside_BS, values_BS, 0), jnp.where(inside_BS, ids_BS, 0)))

    def path_sum(self, values_BS: Array, last_BN: Array, first_BN: Array | None = None) -> Array:
        """Sums ``[B, N]`` of values per token over pieces of paths: of branches, or of turns of branches.

        A token t lies on the path from the root to ``last`` if ``t <= last < exit[t]``, and in its piece from ``first``
        if ``first <= t`` too.

        Args:
            values_BS: values per token.
            last_BN: int32, the index in the row of each piece's last token; -1 where there is none, whose sum is 0.
            first_BN: int32, that of its first token; by default the root.
        """
        last_BN1 = last_BN[..., None]
        on_path_BNS = (self.index_S <= last_BN1) & (last_BN1 < self.exit_BS[:, None, :])
        if first_BN is not None:
            on_path_BNS &= first_BN[..., None] <= self.index_S
        return _over_row(jnp.where(on_path_BNS, values_BS[:, None, :], 0).sum(-1))


def _over_row(sums_BN: Array) -> Array:
    return lax.psum(sums_BN, CONTEXT) if _varies(sums_BN) else sums_BN


def _varies(values: Array) -> bool:
    return CONTEXT in jax.typeof(values).manual_axis_type.varying
