"""FLOPs and bytes of the grouped matmuls, counted for rows that all have a group.

Bytes are what the kernels move between HBM and VMEM with their tiles, so an operand that is read several times counts
several times. Row tiles that two groups share are not counted twice.
"""

from __future__ import annotations

from jax.experimental import pallas as pl


def multiply(rows: int, groups: int, k: int, n: int, itemsize: int, tiles) -> pl.CostEstimate:
    """[M, K] x [G, K, N]: rows are read once for each column tile, weights once for each row tile."""
    lhs = rows * k * (n // tiles.n)
    rhs = max(groups, pl.cdiv(rows, tiles.rows)) * k * n
    return pl.CostEstimate(flops=2 * rows * k * n, bytes_accessed=itemsize * (lhs + rhs + rows * n), transcendentals=0)


def multiply_transposed(rows: int, groups: int, k: int, parts: int, n: int, itemsize: int, tiles) -> pl.CostEstimate:
    """[M, K]^T x P of [M, N] for each group: operands are read once for each tile of the other, sums written once."""
    lhs = rows * k * (n // tiles.n)
    dout = parts * rows * n * (k // tiles.k)
    return pl.CostEstimate(
        flops=2 * parts * rows * k * n,
        bytes_accessed=itemsize * (lhs + dout + groups * k * parts * n),
        transcendentals=0,
    )
