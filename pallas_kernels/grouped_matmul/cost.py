"""FLOPs and bytes of the grouped matmuls, counted for rows that all have a group.

Bytes are those that the kernels move between HBM and VMEM with their tiles, so an operand that is read several times
counts several times. Row tiles that two groups share are counted once.
"""

from __future__ import annotations

from typing import NamedTuple

from jax.experimental import pallas as pl


class MatmulShape(NamedTuple):
    """Sizes of one call.

    Attributes:
        rows: M.
        groups: G.
        k: K.
        n: N.
        itemsize: size of one element [bytes].
    """

    rows: int
    groups: int
    k: int
    n: int
    itemsize: int


def multiply(shape: MatmulShape, tiles) -> pl.CostEstimate:
    """Cost of ``[M, K] x [G, K, N]``: rows are read once for each column tile, weights once for each row tile."""
    rows, groups, k, n, itemsize = shape
    lhs = rows * k * (n // tiles.n)
    rhs = max(groups, pl.cdiv(rows, tiles.rows)) * k * n
    return pl.CostEstimate(flops=2 * rows * k * n, bytes_accessed=itemsize * (lhs + rhs + rows * n), transcendentals=0)


def multiply_transposed(shape: MatmulShape, tiles, *, parts: int) -> pl.CostEstimate:
    """Cost of ``[M, K]^T x [P, M, N]`` for each group, P = ``parts``.

    Each operand is read once for each tile of the other, and the sums are written once.
    """
    rows, groups, k, n, itemsize = shape
    lhs = rows * k * (n // tiles.n)
    dout = parts * rows * n * (k // tiles.k)
    return pl.CostEstimate(
        flops=2 * parts * rows * k * n,
        bytes_accessed=itemsize * (lhs + dout + groups * k * parts * n),
        transcendentals=0,
    )
