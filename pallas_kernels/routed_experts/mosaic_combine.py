"""Sum of each token's rows: gathers sorted rows back into tokens, forward (y) and backward (dx).

The rows of a tile of tokens are fetched from HBM one by one into one of two buffers while the previous tile is summed.
Only rows in use are fetched: a scatter into ``[T, K, D]`` would have to write and read back every choice without an
expert, which on one of 16 expert-parallel ranks are the majority. The kernel reads R * D values, writes T * D, and its
FLOPs are negligible.
"""

from __future__ import annotations

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.grouped_matmul.tiling import VMEM_LIMIT_BYTES
from pallas_kernels.routed_experts import cost
from pallas_kernels.routed_experts.packed_rows import read_halves, start_rows, wait_rows
from pallas_kernels.routed_experts.routing import CORES, KernelRouting
from pallas_kernels.vma import interpreter, output


def combine_rows(packed_RW, routing: KernelRouting, shape, dtype, tiles, *, interpret) -> jax.Array:
    """Sums the rows of each token in float32.

    Returns:
        ``shape`` = ``[T, D]`` in ``dtype``; 0 for tokens without rows, NaN everywhere if copies did not fit.
    """
    (tokens, width), (token_tiles, _, places) = shape, routing.source_JP.shape
    steps = token_tiles // CORES

    def row_lists(index):
        return [pl.BlockSpec((1, 1, places), index, memory_space=pltpu.SMEM) for _ in range(2)]

    def tokens_index(core, i, *_):
        return core * steps + i, 0

    y_TD = pl.pallas_call(
        _combine_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(CORES, steps),
            in_specs=[
                *row_lists(lambda core, i, *_: (core * steps, 0, 0)),
                *row_lists(lambda core, i, *_: (core * steps + jnp.minimum(i + 1, steps - 1), 0, 0)),
                pl.BlockSpec((tiles.tokens, 1), tokens_index),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((tiles.tokens, width), tokens_index),
            scratch_shapes=[
                pltpu.VMEM((2, places, packed_RW.shape[1]), packed_RW.dtype),
                pltpu.VMEM((tiles.tokens, width), jnp.float32),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        out_shape=output((token_tiles * tiles.tokens, width), dtype, packed_RW),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
        cost_estimate=cost.combine_rows(packed_RW.shape[0], tokens, width, dtype.itemsize),
        interpret=interpreter(interpret, packed_RW),
        name="routed_experts_combine",
    )(
        routing.count_J, routing.deepest_J, routing.excess_1,
        routing.source_JP, routing.target_JP, routing.source_JP, routing.target_JP, routing.rows_T1, packed_RW,
    )  # fmt: skip
    return y_TD[:tokens]


def _combine_kernel(
    count_J, deepest_J, excess_1, source_first, target_first, source_next, target_next, rows_T1, rows_hbm,
    y, buffer, sum_s, semaphore,
):  # fmt: skip
    i, steps, tokens, half = pl.program_id(1), pl.num_programs(1), y.shape[0], y.shape[1] // 2
    tile = pl.program_id(0) * steps + i
    slot = lax.rem(i, 2)

    def start(tile, slot, source, target):
        def copy_of(n):
            target_row = buffer.at[slot, target[0, 0, n]]
            return pltpu.make_async_copy(rows_hbm.at[source[0, 0, n]], target_row, semaphore.at[slot])

        start_rows(count_J[tile], copy_of)

    @pl.when(i == 0)
    def _():
        start(tile, 0, source_first, target_first)

    @pl.when(i + 1 < steps)
    def _():
        start(tile + 1, 1 - slot, source_next, target_next)

    wait_rows(count_J[tile], rows_hbm, buffer.at[slot], semaphore.at[slot])
    sum_s[...] = jnp.zeros_like(sum_s)

    def add(number, carry):
        rows = pl.ds(pl.multiple_of(number * tokens, tokens), tokens)
        low, high = read_halves(buffer[slot, rows, :])
        mask = number < rows_T1[...]
        sum_s[:, :half] += jnp.where(mask, low, 0.0)
        sum_s[:, half:] += jnp.where(mask, high, 0.0)
        return carry

    lax.fori_loop(0, deepest_J[tile], add, 0)
    y[...] = jnp.where(excess_1[0] > 0, jnp.nan, sum_s[...]).astype(y.dtype)
