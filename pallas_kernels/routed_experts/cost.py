"""FLOPs, bytes and transcendentals of the kernels of `routed_experts`, counted as if all R rows were in use.

Bytes are what a kernel moves between HBM and VMEM with its tiles: the weights of an expert once for each row tile.
Row tiles that two experts share are not counted twice.
"""

from __future__ import annotations

from jax.experimental import pallas as pl


def up(rows, experts, width, f_size, itemsize, tiles, keep_preactivation) -> pl.CostEstimate:
    """Tokens to activations."""
    written = rows * f_size * (3 if keep_preactivation else 1)
    moved = rows * width + _passes(rows, experts, tiles) * width * 2 * f_size + written
    return pl.CostEstimate(
        flops=4 * rows * width * f_size, bytes_accessed=itemsize * moved, transcendentals=rows * f_size
    )


def down(rows, experts, width, f_size, itemsize, tiles) -> pl.CostEstimate:
    """Activations to rows of the output."""
    moved = rows * (f_size + width) + _passes(rows, experts, tiles) * f_size * width
    return pl.CostEstimate(flops=2 * rows * width * f_size, bytes_accessed=itemsize * moved, transcendentals=0)


def activation_gradients(rows, experts, width, f_size, itemsize, tiles) -> pl.CostEstimate:
    """Rows of dy to gradients of pre-activations, gated activations and sorted rows of dy."""
    moved = rows * (2 * width + 5 * f_size) + _passes(rows, experts, tiles) * f_size * width
    return pl.CostEstimate(
        flops=2 * rows * width * f_size, bytes_accessed=itemsize * moved, transcendentals=rows * f_size
    )


def down_transposed(rows, experts, width, f_size, itemsize, tiles) -> pl.CostEstimate:
    """Gradients of pre-activations to rows of dx."""
    moved = rows * (2 * f_size + width) + _passes(rows, experts, tiles) * 2 * f_size * width
    return pl.CostEstimate(flops=4 * rows * width * f_size, bytes_accessed=itemsize * moved, transcendentals=0)


def combine_rows(rows, tokens, width, itemsize) -> pl.CostEstimate:
    """Rows to tokens."""
    return pl.CostEstimate(flops=rows * width, bytes_accessed=itemsize * (rows + tokens) * width, transcendentals=0)


def _passes(rows, experts, tiles):
    return max(experts, pl.cdiv(rows, tiles.rows))
