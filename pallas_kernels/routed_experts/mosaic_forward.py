"""Forward kernels: `up` turns tokens into SwiGLU activations, `down` turns those into gated rows of the output.

Both walk (core, visit, column block), visits in order of the sorted rows (see `grouped_matmul.tiling`). The rows of a
tile stay in VMEM while all weights of their expert pass by, so weights are read once for each row tile: with 512 rows a
byte of weights gives 512 FLOPs, above the ridge of v5e (240), v5p (166) and tpu7x (312), below that of v6e (560).

`up` gathers: its tokens come from HBM row by row while the tile before is computed, so sorted tokens are never written.
Gate and up are one product over the same rows. Output blocks hold all columns of a tile, because a tile with rows of
two experts is visited twice in a row and must still be in VMEM the second time.
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
    dot,
    for_row_blocks,
    frozen,
    is_active,
    store_rows,
    tile_of,
)
from pallas_kernels.routed_experts import cost
from pallas_kernels.routed_experts.routing import Routing
from pallas_kernels.routed_experts.rows import fetch_tile, packed_dtype, packed_width, store_halves, unpack_tile
from pallas_kernels.varying import interpreter, output


def up(packed_TW, w13_ED2F, routing: Routing, tiles, *, keep_preactivation: bool, interpret):
    """Compute `a = silu(gate) * up` of each sorted row; rows not in use hold anything.

    Returns:
        (a [R, F], h13 [2, R, F] or None), the activation and its pre-activation (gate, up).
    """
    experts, width, _, f_size = w13_ED2F.shape
    dtype, blocks, rows = w13_ED2F.dtype, f_size // tiles.f, routing.token_IR.size
    outputs = [(f_size,), (2, f_size)] if keep_preactivation else [(f_size,)]
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
        cost_estimate=cost.up(rows, experts, width, f_size, dtype.itemsize, tiles, keep_preactivation),
        interpret=interpreter(interpret, packed_TW),
        name="routed_experts_up",
    )(*routing.visits, routing.end_C, routing.token_IR, routing.token_IR, packed_TW, w13_ED2F)
    return (*out, None)[:2]


def _up_kernel(group_V, tile_V, start_V, end_V, end_C, tokens_now, tokens_next, x_hbm, w13, a, *refs, sub, words):
    *h13, buffer, x_s, w_s, semaphore = refs
    at, j, size = visit(), pl.program_id(2), w13.shape[3]

    @pl.when(enters_tile(tile_V) & (j == 0))
    def _():
        fetch_tile(
            at[1], tile_V[at], end_C[at[0]], tokens_now, tokens_next, x_hbm, buffer, semaphore,
            consume=lambda: unpack_tile(buffer, x_s, sub),
        )  # fmt: skip

    def compute(rows, mask_R1):
        h = dot(x_s[rows, :], w_s[...]).astype(a.dtype).astype(jnp.float32)
        gate, up = h[:, :size], h[:, size:]
        columns = pl.ds(pl.multiple_of(j * size, size), size)
        store_rows(a, (rows, columns), mask_R1, gate * jax.nn.sigmoid(gate) * up)
        for ref in h13:
            store_rows(ref, (0, rows, columns), mask_R1, gate)
            store_rows(ref, (1, rows, columns), mask_R1, up)

    @pl.when(start_V[at] < end_V[at])
    def _():
        join_pair(w13, w_s, words)
        for_row_blocks(start_V[at], end_V[at], sub, compute)


def down(a_RF, w2_EFD, routing: Routing, tiles, *, interpret) -> jax.Array:
    """Compute `gate * (a @ w2)` of each sorted row, packed, [R, W]; rows not in use hold anything."""
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
        cost_estimate=cost.down(rows, experts, width, f_size, dtype.itemsize, tiles),
        interpret=interpreter(interpret, a_RF),
        name="routed_experts_down",
    )(*routing.visits, a_RF, routing.gate_R1, w2_EFD, w2_EFD)


def _down_kernel(group_V, tile_V, start_V, end_V, a, gate, w2_low, w2_high, ys, *, sub):
    at, j = visit(), pl.program_id(2)

    def compute(rows, mask_R1):
        low, high = (gate[rows, :] * dot(a[rows, :], w2[0]) for w2 in (w2_low, w2_high))
        store_halves(ys, rows, j, mask_R1, low, high)

    for_row_blocks(start_V[at], end_V[at], sub, compute)


def visit():
    """The index (core, step) of this visit."""
    return pl.program_id(0), pl.program_id(1)


def enters_tile(tile_V):
    """Whether this visit is the first of its tile."""
    core, v = visit()
    return (v == 0) | (tile_V[core, v] != tile_V[core, jnp.maximum(v - 1, 0)])


def join_pair(w13, out, words: bool) -> None:
    """Copy a block [1, D, 2, F] of gate and up weights to [D, 2F], a piece of rows at a time."""
    size, piece = w13.shape[3], tile_of(w13.shape[1], 1024)

    def step(index, carry):
        rows = pl.ds(pl.multiple_of(index * piece, piece), piece)
        out[rows, :size], out[rows, size:] = read_pair(w13, rows, words=words)
        return carry

    lax.fori_loop(0, w13.shape[1] // piece, step, 0)


def token_specs(routing: Routing):
    """The tokens of this row tile and of the next one."""
    row_tiles, _, rows = routing.token_IR.shape

    def this(core, v, j, *plan):
        return Visits(*plan[:4]).tile_V[core, v], 0, 0

    def following(core, v, j, *plan):
        return jnp.minimum(Visits(*plan[:4]).tile_V[core, v] + 1, row_tiles - 1), 0, 0

    return [pl.BlockSpec((1, 1, rows), index, memory_space=pltpu.SMEM) for index in (this, following)]


def row_spec(rows: int, *columns: int):
    """All columns of a row tile; (2, F) columns are [2, rows, F]."""

    def index(core, v, j, *plan):
        return (*(0 for _ in columns[:-1]), Visits(*plan[:4]).tile_V[core, v], 0)

    return pl.BlockSpec((*columns[:-1], rows, columns[-1]), index)


def weight_index(blocks: int, index):
    """The block of weights `index(expert, column block)` of a visit; visits without rows fetch nothing."""

    def of_visit(core, v, j, *plan):
        visits = Visits(*plan[:4])
        return index(visits.group_V[core, v], frozen(j, blocks, is_active(visits, (core, v))))

    return of_visit


def parameters():
    """Steps of a core are in order: tiles are kept in VMEM, and fetched for the next, from one step to another."""
    semantics = "parallel", "arbitrary", "arbitrary"
    return pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=VMEM_LIMIT_BYTES)
