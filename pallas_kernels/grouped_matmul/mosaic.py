"""Grouped matmuls as Mosaic kernels.

``multiply`` walks (column tile, visit, contraction tile): the weights of a group are read once for each of its row
tiles, rows once for each column tile. With tiles of 512 rows and 2048 columns a step has 410 FLOPs per byte read, above
the ridge of v5e (240), v5p (166) and tpu7x (312) and below that of v6e (560), where HBM bandwidth is the bound.
``multiply_transposed`` walks (tile of K, tile of N, visit) and keeps the float32 sum of one group's tile of weights in
VMEM over all row tiles of the group: with tiles of 1024 x 1024 there are 512 FLOPs per byte read, and each sum is
written once.

Sub-blocks of rows that lie outside a visit's group are skipped, and other rows outside it are masked by selection: a
row of another group, or beyond all groups, may hold NaN.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.grouped_matmul import cost
from pallas_kernels.grouped_matmul.packing import pairs_are_words, write_pair
from pallas_kernels.grouped_matmul.tiling import (
    VMEM_LIMIT_BYTES,
    Visits,
    for_row_blocks,
    frozen,
    is_active,
    is_first_of,
    is_last_of,
    masked,
    plan_visits,
    row_tile,
    store_rows,
    tile_of,
)
from pallas_kernels.ops import dot
from pallas_kernels.vma import interpreter, output


class MatmulTiles(NamedTuple):
    """Sizes of the blocks of one matmul ``[M, K] x [K, N]``.

    Attributes:
        rows: rows of a tile.
        sub: rows that are multiplied at a time.
        k: columns of a tile of K.
        n: columns of a tile of N.
    """

    rows: int
    sub: int
    k: int
    n: int


def default_tiles(rows: int, groups: int, k: int, n: int, *, transposed: bool) -> MatmulTiles:
    """Returns tiles for which the sums take at most 4 MiB of VMEM."""
    limit_k, limit_n = (1024, 1024) if transposed else (1024, 2048)
    return MatmulTiles(row_tile(rows, groups, 512), 128, tile_of(k, limit_k), tile_of(n, limit_n))


def multiply(lhs_MK, rhs_G, sizes_G, *, transpose_rhs: bool, tiles: MatmulTiles | None, interpret) -> jax.Array:
    """Computes ``out[m] = lhs[m] @ rhs[group of m]``, and 0 for rows without a group.

    Args:
        lhs_MK: rows sorted by group.
        rhs_G: ``[G, K, N]``, or ``[G, N, K]`` with ``transpose_rhs``.
        sizes_G: int32, number of rows of each group.
        transpose_rhs: whether rhs is stored transposed.
        tiles: sizes of blocks; None chooses them.
        interpret: as in ``pallas_call``.

    Returns:
        ``[M, N]`` in the dtype of lhs.
    """
    rows, contraction = lhs_MK.shape
    groups, columns = rhs_G.shape[0], rhs_G.shape[1 if transpose_rhs else 2]
    tiles = tiles or default_tiles(rows, groups, contraction, columns, transposed=False)
    lhs_MK = _pad_to_tile(lhs_MK, tiles.rows)
    padded = lhs_MK.shape[0]
    # Rows after the last group form an additional group, whose visits write zeros.
    sizes_G = jnp.append(sizes_G, padded - jnp.sum(sizes_G, dtype=jnp.int32))
    visits = plan_visits(sizes_G, padded, tiles.rows, empty_groups=False)
    k_blocks = contraction // tiles.k
    shape = cost.MatmulShape(rows, groups, contraction, columns, lhs_MK.dtype.itemsize)

    def has_product(v, plan):
        return is_active(plan, v) & (plan.group_V[v] < groups)

    def lhs_index(n, v, k, *plan):
        plan = Visits(*plan)
        return plan.tile_V[v], frozen(k, k_blocks, has_product(v, plan))

    def rhs_index(n, v, k, *plan):
        plan = Visits(*plan)
        k = frozen(k, k_blocks, has_product(v, plan))
        return (jnp.minimum(plan.group_V[v], groups - 1), *((n, k) if transpose_rhs else (k, n)))

    out_MN = pl.pallas_call(
        partial(_multiply_kernel, sub=tiles.sub, groups=groups, transpose_rhs=transpose_rhs),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(visits),
            grid=(columns // tiles.n, visits.tile_V.size, k_blocks),
            in_specs=[
                pl.BlockSpec((tiles.rows, tiles.k), lhs_index),
                pl.BlockSpec((1, tiles.n, tiles.k) if transpose_rhs else (1, tiles.k, tiles.n), rhs_index),
            ],
            out_specs=pl.BlockSpec((tiles.rows, tiles.n), lambda n, v, k, *plan: (Visits(*plan).tile_V[v], n)),
            scratch_shapes=[pltpu.VMEM((tiles.rows, tiles.n), jnp.float32)],
        ),
        out_shape=output((padded, columns), lhs_MK.dtype, lhs_MK),
        compiler_params=_parameters("parallel", "arbitrary", "arbitrary"),
        cost_estimate=cost.multiply(shape, tiles),
        interpret=interpreter(interpret, lhs_MK),
        name="grouped_matmul",
    )(*visits, lhs_MK, rhs_G)
    return out_MN[:rows]


def _multiply_kernel(group_V, tile_V, start_V, end_V, lhs, rhs, out, sum_s, *, sub, groups, transpose_rhs):
    v, k, last = pl.program_id(1), pl.program_id(2), pl.num_programs(2) - 1
    real = group_V[v] < groups

    def accumulate(rows, mask_R1):
        # Rows outside the group are computed and not stored: a row of a product depends on no other row.
        product = dot(lhs[rows, :], rhs[0], (1, 1) if transpose_rhs else (1, 0))
        total = jnp.where(k == 0, product, sum_s[rows, :] + product)
        sum_s[rows, :] = total

        @pl.when(k == last)
        def _():
            store_rows(out, (rows, slice(None)), mask_R1, total)

    @pl.when(real)
    def _():
        for_row_blocks(start_V[v], end_V[v], sub, accumulate)

    @pl.when(jnp.logical_not(real) & (k == last))
    def _():
        zero = jnp.zeros((sub, out.shape[1]), jnp.float32)
        for_row_blocks(
            start_V[v], end_V[v], sub, lambda rows, mask_R1: store_rows(out, (rows, slice(None)), mask_R1, zero)
        )


def multiply_transposed(lhs_MK, dout_PMN, sizes_G, *, tiles: MatmulTiles | None, interpret) -> jax.Array:
    """Computes ``out[g] = sum of lhs[m]^T dout[p, m]`` over the rows m of group g, and 0 for a group without rows.

    The P (1 or 2) matrices of ``dout_PMN`` share the rows of lhs that a step holds in VMEM.

    Returns:
        ``[G, K, N]`` for P = 1, else ``[G, K, P, N]``.
    """
    (rows, k_size), (parts, _, columns), groups = lhs_MK.shape, dout_PMN.shape, sizes_G.size
    tiles = tiles or default_tiles(rows, groups, k_size, columns, transposed=True)
    lhs_MK = _pad_to_tile(lhs_MK, tiles.rows)
    dout_PMN = _pad_to_tile(dout_PMN, tiles.rows)
    visits = plan_visits(sizes_G, lhs_MK.shape[0], tiles.rows, empty_groups=True)
    middle = () if parts == 1 else (parts,)
    shape = cost.MatmulShape(rows, groups, k_size, columns, lhs_MK.dtype.itemsize)

    def out_index(k, n, v, *plan):
        return (Visits(*plan).group_V[v], k, *(0 for _ in middle), n)

    return pl.pallas_call(
        partial(
            _transposed_kernel, sub=tiles.sub, steps=visits.tile_V.size, words=pairs_are_words(lhs_MK.dtype, interpret)
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(visits),
            grid=(k_size // tiles.k, columns // tiles.n, visits.tile_V.size),
            in_specs=[
                pl.BlockSpec((tiles.rows, tiles.k), lambda k, n, v, *plan: (Visits(*plan).tile_V[v], k)),
                pl.BlockSpec((parts, tiles.rows, tiles.n), lambda k, n, v, *plan: (0, Visits(*plan).tile_V[v], n)),
            ],
            out_specs=pl.BlockSpec((1, tiles.k, *middle, tiles.n), out_index),
            scratch_shapes=[pltpu.VMEM((parts, tiles.k, tiles.n), jnp.float32)],
        ),
        out_shape=output((groups, k_size, *middle, columns), lhs_MK.dtype, lhs_MK),
        compiler_params=_parameters("parallel", "parallel", "arbitrary"),
        cost_estimate=cost.multiply_transposed(shape, tiles, parts=parts),
        interpret=interpreter(interpret, lhs_MK),
        name="grouped_matmul_transposed",
    )(*visits, lhs_MK, dout_PMN)


def _transposed_kernel(group_V, tile_V, start_V, end_V, lhs, dout, out, sum_s, *, sub, steps, words):
    v = pl.program_id(2)
    start, end, rows_in_tile = start_V[v], end_V[v], lhs.shape[0]
    whole = (start == 0) & (end == rows_in_tile)

    @pl.when(is_first_of(group_V, v))
    def _():
        sum_s[...] = jnp.zeros_like(sum_s)

    @pl.when(whole)
    def _():
        # A product over all rows reads and writes the sums once instead of once for each sub-block.
        for part in range(dout.shape[0]):
            sum_s[part] += dot(lhs[...], dout[part], (0, 0))

    def accumulate(rows, mask_R1):
        for part in range(dout.shape[0]):
            sum_s[part] += dot(masked(lhs[rows, :], mask_R1), masked(dout[part, rows, :], mask_R1), (0, 0))

    @pl.when(jnp.logical_not(whole))
    def _():
        for_row_blocks(start, end, sub, accumulate)

    @pl.when(is_last_of(group_V, v, steps))
    def _():
        if dout.shape[0] == 1:
            out[0] = sum_s[0].astype(out.dtype)
        else:
            write_pair(out, slice(None), sum_s[0], sum_s[1], words=words)


def _pad_to_tile(array, rows: int):
    missing = rows - array.shape[-2]
    return array if missing <= 0 else jnp.pad(array, [(0, 0)] * (array.ndim - 2) + [(0, missing), (0, 0)])


def _parameters(*semantics):
    return pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=VMEM_LIMIT_BYTES)
