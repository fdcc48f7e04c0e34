"""Newton-Schulz on TPU: the two symmetric products of every step at half their FLOPs.

A step is ``A = X Xᵀ``, ``P = b A + c A²``, ``X ← a X + P X``. A and A² = A Aᵀ are symmetric, so one kernel computes the
tiles on and below the diagonal and writes each of them twice, the second time transposed; ``b A`` is added when a tile
of A² leaves the accumulator. P X, which has no symmetry, is computed by XLA with ``a X`` fused into it. For K2's
2048 x 7168 experts a step takes 3.3 n²m FLOPs instead of 4.6, for square matrices 4 n³ instead of 6.

Tiling: the grid is (matrix, tile on or below the diagonal, step along the contracted side), the last one with an extra
step that only writes the transposed tile. Tiles are square, of the largest size up to 768 that divides the padded rows;
up to 1024 numbers are contracted at a time. A tile of t x t reads 2 t numbers for 2 t² FLOPs: t / 2 FLOPs per byte in
bfloat16, 256 at K2's experts (t = 512), beyond the balance of v5p (166) and v5e (240) and short of v6e's (560).

Source: K. Jordan's Muon; the symmetric products are those of Flash-Muon-like GPU kernels.
"""

from __future__ import annotations

import functools
from typing import Any

from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np

from pallas_kernels.ops import dot
from pallas_kernels.vma import interpreter, output

LANES = 128
LARGEST_TILE = 6 * LANES
LARGEST_DEPTH = 8 * LANES
VMEM_LIMIT = 32 << 20


def orthogonalize(x_BNM: Array, steps: tuple[tuple[float, float, float], ...], interpret: Any = False) -> Array:
    """Applies all steps to normalised matrices.

    Args:
        x_BNM: float32 or bfloat16, N at most M.
        steps: coefficients of the steps.
        interpret: as in ``pallas_call``.

    Returns:
        ``[B, N, M]`` in the dtype of ``x_BNM``.
    """
    rows, columns = x_BNM.shape[1:]
    x_BNM = jnp.pad(x_BNM, ((0, 0), (0, -rows % _tile(rows)), (0, -columns % LANES)))  # zeros stay zeros
    precision = lax.Precision.HIGHEST if x_BNM.dtype == jnp.float32 else None

    def step(x_BNM: Array, abc: Array) -> tuple[Array, None]:
        a, b, c = abc
        gram_BNN = symmetric_product(x_BNM, interpret=interpret)
        poly_BNN = symmetric_product(gram_BNN, (c, b), interpret=interpret)
        moved_BNM = jnp.matmul(poly_BNN, x_BNM, precision=precision, preferred_element_type=jnp.float32)
        return (a * x_BNM.astype(jnp.float32) + moved_BNM).astype(x_BNM.dtype), None

    return lax.scan(step, x_BNM, jnp.asarray(steps, jnp.float32))[0][:, :rows, :columns]


def symmetric_product(x_BNM: Array, scales: tuple[Any, Any] | None = None, interpret: Any = False) -> Array:
    """Computes ``x xᵀ`` of every matrix of a stack, or ``c · x xᵀ + b · x`` for symmetric matrices x.

    Args:
        x_BNM: float32 or bfloat16, N a multiple of its tile and M of LANES.
        scales: (c, b), numbers or float32 scalars; None for ``x xᵀ``.
        interpret: as in ``pallas_call``.

    Returns:
        ``[B, N, N]`` in the dtype of ``x_BNM``.
    """
    count, rows, columns = x_BNM.shape
    tile, depth = _tile(rows), _depth(columns)
    i_of, j_of = (jnp.asarray(index, jnp.int32) for index in np.tril_indices(rows // tile))
    steps = columns // depth
    last = steps - 1

    def row_block(index: int):
        return lambda n, pair, k, *refs: (n, refs[index][pair], jnp.minimum(k, last))

    def output_block(n, pair, k, i_of, j_of, scales):
        mirrored = k > last
        return n, jnp.where(mirrored, j_of[pair], i_of[pair]), jnp.where(mirrored, i_of[pair], j_of[pair])

    operands, specs = (
        [x_BNM, x_BNM],
        [pl.BlockSpec((1, tile, depth), row_block(0)), pl.BlockSpec((1, tile, depth), row_block(1))],
    )
    if scales is not None:
        operands.append(x_BNM)
        specs.append(pl.BlockSpec((1, tile, tile), lambda n, pair, k, i_of, j_of, scales: (n, i_of[pair], j_of[pair])))
    return pl.pallas_call(
        functools.partial(_kernel, last=last),
        out_shape=output((count, rows, rows), x_BNM.dtype, x_BNM),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(count, len(i_of), steps + 1),
            in_specs=specs,
            out_specs=pl.BlockSpec((1, tile, tile), output_block),
            scratch_shapes=[pltpu.VMEM((tile, tile), jnp.float32)],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT
        ),
        cost_estimate=symmetric_product_cost(count, rows, columns, x_BNM.dtype.itemsize, scales is not None),
        interpret=interpreter(interpret, x_BNM),
        name="symmetric_product",
    )(i_of, j_of, jnp.stack([jnp.float32(number) for number in scales or (1, 0)]), *operands)


def _kernel(i_of, j_of, scales, left, right, *refs, last: int):
    del i_of, j_of  # only the index maps read them
    *addend, out, total = refs
    step = pl.program_id(2)

    @pl.when(step == 0)
    def _():
        total[...] = jnp.zeros_like(total)

    @pl.when(step <= last)
    def _():
        total[...] += dot(left[0], right[0], (1, 1))

    @pl.when(step == last)
    def _():
        if addend:
            total[...] = scales[0] * total[...] + scales[1] * addend[0][0].astype(jnp.float32)
        out[0] = total[...].astype(out.dtype)

    @pl.when(step > last)
    def _():
        out[0] = total[...].T.astype(out.dtype)


def symmetric_product_cost(count: int, rows: int, columns: int, itemsize: int, addend: bool) -> pl.CostEstimate:
    """Cost of one product: the tiles on and below the diagonal, and the bytes that they read and write."""
    tile = _tile(rows)
    blocks = -(-rows // tile)
    pairs = blocks * (blocks + 1) // 2
    read = 2 * tile * columns + (tile * tile if addend else 0)
    return pl.CostEstimate(
        flops=count * pairs * 2 * tile * tile * columns,
        bytes_accessed=count * pairs * (read + 2 * tile * tile) * itemsize,
        transcendentals=0,
    )


def cost(count: int, rows: int, columns: int, steps: int, itemsize: int) -> pl.CostEstimate:
    """Cost of all steps, P X included, for ``count`` matrices with at most as many rows as columns."""
    gram = symmetric_product_cost(count, rows, columns, itemsize, False)
    poly = symmetric_product_cost(count, rows, rows, itemsize, True)
    return pl.CostEstimate(
        flops=steps * (gram.flops + poly.flops + count * 2 * rows * rows * columns),
        bytes_accessed=steps
        * (gram.bytes_accessed + poly.bytes_accessed + count * (rows * rows + 2 * rows * columns) * itemsize),
        transcendentals=0,
    )


def _tile(rows: int) -> int:
    """Largest tile among those that pad ``rows`` least."""
    return min(range(LARGEST_TILE, 0, -LANES), key=lambda tile: -rows % tile)


def _depth(columns: int) -> int:
    """Numbers contracted at a time: the largest allowed divisor of ``columns``, a multiple of LANES."""
    return max(depth for depth in range(LANES, LARGEST_DEPTH + 1, LANES) if columns % depth == 0)
