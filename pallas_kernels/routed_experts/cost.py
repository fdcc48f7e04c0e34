"""FLOPs, bytes and transcendentals of the kernels of ``routed_experts``, counted as if all R rows were in use.

Bytes are those that a kernel moves between HBM and VMEM with its tiles: the weights of an expert once for each row
tile. Row tiles that two experts share are counted once.
"""

from __future__ import annotations

from typing import NamedTuple

from jax.experimental import pallas as pl


class ExpertShape(NamedTuple):
    """Sizes of one call.

    Attributes:
        rows: R, sorted rows.
        experts: E.
        width: D.
        expert_width: F.
        itemsize: size of one element [bytes].
    """

    rows: int
    experts: int
    width: int
    expert_width: int
    itemsize: int


def up(shape: ExpertShape, tiles, *, keep_preactivation: bool) -> pl.CostEstimate:
    """Cost of the kernel from tokens to activations."""
    rows, _, width, expert_width, itemsize = shape
    written = rows * expert_width * (3 if keep_preactivation else 1)
    moved = rows * width + _passes(shape, tiles) * width * 2 * expert_width + written
    return pl.CostEstimate(
        flops=4 * rows * width * expert_width, bytes_accessed=itemsize * moved, transcendentals=rows * expert_width
    )


def down(shape: ExpertShape, tiles) -> pl.CostEstimate:
    """Cost of the kernel from activations to rows of the output."""
    rows, _, width, expert_width, itemsize = shape
    moved = rows * (expert_width + width) + _passes(shape, tiles) * expert_width * width
    return pl.CostEstimate(flops=2 * rows * width * expert_width, bytes_accessed=itemsize * moved, transcendentals=0)


def activation_gradients(shape: ExpertShape, tiles) -> pl.CostEstimate:
    """Cost of the kernel from rows of dy to gradients of pre-activations, gated activations and sorted rows of dy."""
    rows, _, width, expert_width, itemsize = shape
    moved = rows * (2 * width + 5 * expert_width) + _passes(shape, tiles) * expert_width * width
    return pl.CostEstimate(
        flops=2 * rows * width * expert_width, bytes_accessed=itemsize * moved, transcendentals=rows * expert_width
    )


def down_transposed(shape: ExpertShape, tiles) -> pl.CostEstimate:
    """Cost of the kernel from gradients of pre-activations to rows of dx."""
    rows, _, width, expert_width, itemsize = shape
    moved = rows * (2 * expert_width + width) + _passes(shape, tiles) * 2 * expert_width * width
    return pl.CostEstimate(flops=4 * rows * width * expert_width, bytes_accessed=itemsize * moved, transcendentals=0)


def combine_rows(rows: int, tokens: int, width: int, itemsize: int) -> pl.CostEstimate:
    """Cost of the kernel that sums rows into tokens."""
    return pl.CostEstimate(flops=rows * width, bytes_accessed=itemsize * (rows + tokens) * width, transcendentals=0)


def _passes(shape: ExpertShape, tiles) -> int:
    """How often the weights of one expert are read, summed over experts."""
    return max(shape.experts, pl.cdiv(shape.rows, tiles.rows))
