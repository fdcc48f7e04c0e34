"""Forward kernels: ``up`` computes SwiGLU activations from tokens, ``down`` gated rows of the output from activations.

Both walk (core, visit, column block), with visits in the order of the sorted rows (see ``grouped_matmul.tiling``). The
rows of a tile stay in VMEM while all weights of their expert stream through, so weights are read once for each row
tile: with 512 rows there are 512 FLOPs per byte of weights, above the ridge of v5e (240), v5p (166) and tpu7x (312) and
below that of v6e (560).

``up`` gathers: the tokens of a tile are fetched from HBM row by row while the previous tile is computed, so sorted
tokens are never written. Gate and up are one product over the same rows. Output blocks hold all columns of a tile,
because a tile with rows of two experts is visited twice in a row and must still be in VMEM at the second visit.
"""

from __future__ import annotations

from functools import partial

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.grouped_matmul.packing import pairs_are_words, read_pair
from pallas_kernels.grouped_matmul.tiling import (
    VMEM_LIMIT_BYTES,
    Visits,
    for_row_blocks,
    frozen,
    is_active,
    store_rows,
    tile_of,
)
from pallas_kernels.ops import dot
from pallas_kernels.routed_experts import cost
from pallas_kernels.routed_experts.packed_rows import (
    RowFetch,
    fetch_tile,
    packed_dtype,
    packed_width,
    store_halves,
    unpack_tile,
)
from pallas_kernels.routed_experts.routing import KernelRouting
from pallas_kernels.vma import interpreter, output


def up(packed_TW, w13_ED2F, routing: KernelRouting, tiles, *, keep_preactivation: bool, interpret):
    """Computes ``a = silu(gate) * up`` for each sorted row; unused rows hold arbitrary values.

    Returns:
        (a ``[R, F]``, h13 ``[2, R, F]`` or None), the activation and its pre-activation (gate, up)
    """
    experts, width, _, f_size = w13_ED2F.shape
    dtype, blocks, rows = w13_ED2F.dtype, f_size // tiles.f, routing.token_IR.size
    outputs = [(f_size,), (2, f_size)] if keep_preactivation else [(f_size,)]
    shape = cost.ExpertShape(rows, experts, width, f_size, dtype.itemsize)
    out = pl.pallas_call(
        partial(_up_kernel, sub=tiles.sub, words=pairs_are_words(dtype, interpret)),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=(*routing.visits.tile_V.shape, blocks),
            in_specs=[
                *token_specs(routing),
                pl.BlockSpec(memory_space=pl.ANY),
                pl.BlockSpec((1, width, 2, tiles.f), weight_index(blocks, lambda e, j: (e, 0, 0, j))),
            ],
            out_specs=[row_spec(tiles.rows, *columns) for columns in outputs],
            scratch_shapes=[
                pltpu.VMEM((tiles.rows, packed_width(width, dtype)), packed_dtype(dtype)),
                pltpu.VMEM((tiles.rows, width), dtype),
                pltpu.VMEM((width, 2 * tiles.f), dtype),
                pltpu.SemaphoreType.DMA,
            ],
        ),
        out_shape=[output((*c[:-1], rows, c[-1]), dtype, packed_TW) for c in outputs],
        compiler_params=parameters(),
        cost_estimate=cost.up(shape, tiles, keep_preactivation=keep_preactivation),
        interpret=interpreter(interpret, packed_TW),
        name="routed_experts_up",
    )(*routing.visits, routing.end_C, routing.token_IR, routing.token_IR, packed_TW, w13_ED2F)
    return (*out, None)[:2]


def _up_kernel(group_V, tile_V, start_V, end_V, end_C, tokens_now, tokens_next, x_hbm, w13, a, *refs, sub, words):
    *h13, buffer, x_s, w_s, semaphore = refs
    step, j, size = visit(), pl.program_id(2), w13.shape[3]

    @pl.when(enters_tile(tile_V) & (j == 0))
    def _():
        fetch_tile(
            RowFetch(x_hbm, buffer, semaphore),
            lambda: unpack_tile(buffer, x_s, sub),
            step=step[1],
            tile=tile_V[step],
            end=end_C[step[0]],
            tokens_now=tokens_now,
            tokens_next=tokens_next,
        )

    def compute(rows, mask_R1):
        h = dot(x_s[rows, :], w_s[...]).astype(a.dtype).astype(jnp.float32)
        gate, up = h[:, :size], h[:, size:]
        columns = pl.ds(pl.multiple_of(j * size, size), size)
        store_rows(a, (rows, columns), mask_R1, gate * jax.nn.sigmoid(gate) * up)
        for ref in h13:
            store_rows(ref, (0, rows, columns), mask_R1, gate)
            store_rows(ref, (1, rows, columns), mask_R1, up)

    @pl.when(start_V[step] < end_V[step])
    def _():
        join_pair(w13, w_s, words)
        for_row_blocks(start_V[step], end_V[step], sub, compute)


def down(a_RF, w2_EFD, routing: KernelRouting, tiles, *, interpret) -> jax.Array:
    """Computes ``gate * (a @ w2)`` for each sorted row.

    Returns:
        Packed rows ``[R, W]``; unused rows hold arbitrary values.
    """
    (rows, f_size), (experts, _, width), dtype = a_RF.shape, w2_EFD.shape, a_RF.dtype
    blocks = width // 2 // tiles.d
    return pl.pallas_call(
        partial(_down_kernel, sub=tiles.sub),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(*routing.visits.tile_V.shape, blocks),
            in_specs=[
                row_spec(tiles.rows, f_size),
                row_spec(tiles.rows, 1),
                pl.BlockSpec((1, f_size, tiles.d), weight_index(blocks, lambda e, j: (e, 0, j))),
                pl.BlockSpec((1, f_size, tiles.d), weight_index(blocks, lambda e, j: (e, 0, blocks + j))),
            ],
            out_specs=row_spec(tiles.rows, packed_width(width, dtype)),
        ),
        out_shape=output((rows, packed_width(width, dtype)), packed_dtype(dtype), a_RF),
        compiler_params=parameters(),
        cost_estimate=cost.down(cost.ExpertShape(rows, experts, width, f_size, dtype.itemsize), tiles),
        interpret=interpreter(interpret, a_RF),
        name="routed_experts_down",
    )(*routing.visits, a_RF, routing.gate_R1, w2_EFD, w2_EFD)


def _down_kernel(group_V, tile_V, start_V, end_V, a, gate, w2_low, w2_high, ys, *, sub):
    step, j = visit(), pl.program_id(2)

    def compute(rows, mask_R1):
        low, high = (gate[rows, :] * dot(a[rows, :], w2[0]) for w2 in (w2_low, w2_high))
        store_halves(ys, rows, j, mask_R1, low, high)

    for_row_blocks(start_V[step], end_V[step], sub, compute)


def visit():
    """Index of the current visit: core, and step of that core."""
    return pl.program_id(0), pl.program_id(1)


def enters_tile(tile_V):
    """Whether the current visit is the first of its tile."""
    core, v = visit()
    return (v == 0) | (tile_V[core, v] != tile_V[core, jnp.maximum(v - 1, 0)])


def join_pair(w13, out, words: bool) -> None:
    """Copies a block ``[1, D, 2, F]`` of gate and up weights to ``[D, 2F]``, a range of rows at a time."""
    size, piece = w13.shape[3], tile_of(w13.shape[1], 1024)

    def step(index, carry):
        rows = pl.ds(pl.multiple_of(index * piece, piece), piece)
        out[rows, :size], out[rows, size:] = read_pair(w13, rows, words=words)
        return carry

    lax.fori_loop(0, w13.shape[1] // piece, step, 0)


def token_specs(routing: KernelRouting):
    """Blocks with the tokens of the current row tile and of the next one."""
    row_tiles, _, rows = routing.token_IR.shape

    def current(core, v, j, *plan):
        return Visits(*plan[:4]).tile_V[core, v], 0, 0

    def following(core, v, j, *plan):
        return jnp.minimum(Visits(*plan[:4]).tile_V[core, v] + 1, row_tiles - 1), 0, 0

    return [pl.BlockSpec((1, 1, rows), index, memory_space=pltpu.SMEM) for index in (current, following)]


def row_spec(rows: int, *columns: int):
    """Block with all columns of a row tile; columns (2, F) stand for ``[2, rows, F]``."""

    def index(core, v, j, *plan):
        return (*(0 for _ in columns[:-1]), Visits(*plan[:4]).tile_V[core, v], 0)

    return pl.BlockSpec((*columns[:-1], rows, columns[-1]), index)


def weight_index(blocks: int, index):
    """Index map of the weights' block ``index(expert, column block)``; visits without rows fetch nothing."""

    def of_visit(core, v, j, *plan):
        visits = Visits(*plan[:4])
        return index(visits.group_V[core, v], frozen(j, blocks, is_active(visits, (core, v))))

    return of_visit


def parameters():
    """Compiler parameters. The steps of a core are sequential: a tile stays in VMEM, and the next is prefetched."""
    semantics = "parallel", "arbitrary", "arbitrary"
    return pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=VMEM_LIMIT_BYTES)
