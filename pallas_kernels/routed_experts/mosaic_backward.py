"""Backward kernels: ``activation_gradients`` from dy to the pre-activation, ``down_transposed`` from there to dx.

The first gathers rows of dy as ``up`` gathers tokens, multiplies them with w2 transposed, and recomputes the activation
from the pre-activation in the epilogue: ``<a, da>`` is the gradient of the gate, so no row of the output is kept. It
also writes the sorted operands of the weight gradients: the gated activation and the rows of dy that it has fetched.
The tiling and the FLOPs per byte of weights are those of the forward kernels. Including its outputs, for K2's sizes (24
experts of 7168 x 2048, 32,768 rows) ``activation_gradients`` has 276 FLOPs per byte: above the ridge of v5e and v5p
only.
"""

from __future__ import annotations

from functools import partial

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.grouped_matmul.packing import pairs_are_words
from pallas_kernels.grouped_matmul.tiling import Visits, for_row_blocks, store_rows
from pallas_kernels.ops import dot
from pallas_kernels.routed_experts import cost
from pallas_kernels.routed_experts.mosaic_forward import (
    enters_tile,
    join_pair,
    parameters,
    row_spec,
    token_specs,
    visit,
    weight_index,
)
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


def activation_gradients(packed_dy_TW, h13_2RF, w2_EFD, routing: KernelRouting, tiles, *, interpret):
    """Differentiates ``gate * swiglu(h13) @ w2`` for each sorted row; unused rows hold arbitrary values.

    Returns:
        (dh13 ``[2, R, F]``, gated activations ``[R, F]``, sorted rows of dy ``[R, D]``, dgate ``[R, 1]`` float32)
    """
    (experts, f_size, width), rows, dtype = w2_EFD.shape, routing.token_IR.size, w2_EFD.dtype
    blocks = f_size // tiles.f
    shape = cost.ExpertShape(rows, experts, width, f_size, dtype.itemsize)

    def preactivation_index(core, v, j, *plan):
        return weight_index(blocks, lambda e, j: (0, Visits(*plan[:4]).tile_V[core, v], j))(core, v, j, *plan)

    return pl.pallas_call(
        partial(_activation_kernel, sub=tiles.sub),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=(*routing.visits.tile_V.shape, blocks),
            in_specs=[
                *token_specs(routing),
                pl.BlockSpec(memory_space=pl.ANY),
                pl.BlockSpec((2, tiles.rows, tiles.f), preactivation_index),
                row_spec(tiles.rows, 1),
                pl.BlockSpec((1, tiles.f, width), weight_index(blocks, lambda e, j: (e, j, 0))),
            ],
            out_specs=[row_spec(tiles.rows, *columns) for columns in ((2, f_size), (f_size,), (width,), (1,))],
            scratch_shapes=[
                pltpu.VMEM((tiles.rows, packed_width(width, dtype)), packed_dtype(dtype)),
                pltpu.SemaphoreType.DMA,
            ],
        ),
        out_shape=[
            output((2, rows, f_size), dtype, packed_dy_TW),
            output((rows, f_size), dtype, packed_dy_TW),
            output((rows, width), dtype, packed_dy_TW),
            output((rows, 1), jnp.float32, packed_dy_TW),
        ],
        compiler_params=parameters(),
        cost_estimate=cost.activation_gradients(shape, tiles),
        interpret=interpreter(interpret, packed_dy_TW),
        name="routed_experts_activation_gradients",
    )(
        *routing.visits, routing.end_C, routing.token_IR, routing.token_IR,
        packed_dy_TW, h13_2RF, routing.gate_R1, w2_EFD,
    )  # fmt: skip


def _activation_kernel(
    group_V, tile_V, start_V, end_V, end_C, tokens_now, tokens_next, dy_hbm, h13, gate, w2,
    dh13, gated, dys, dgate, buffer, semaphore, *, sub,
):  # fmt: skip
    step, j, size = visit(), pl.program_id(2), w2.shape[1]

    @pl.when(enters_tile(tile_V) & (j == 0))
    def _():
        fetch_tile(
            RowFetch(dy_hbm, buffer, semaphore),
            lambda: unpack_tile(buffer, dys, sub),
            step=step[1],
            tile=tile_V[step],
            end=end_C[step[0]],
            tokens_now=tokens_now,
            tokens_next=tokens_next,
        )
        dgate[...] = jnp.zeros_like(dgate)

    def compute(rows, mask_R1):
        da = dot(dys[rows, :], w2[0], (1, 1))
        pre_gate, up, weight = (ref.astype(jnp.float32) for ref in (h13[0, rows, :], h13[1, rows, :], gate[rows, :]))
        sigmoid = jax.nn.sigmoid(pre_gate)
        silu = pre_gate * sigmoid
        columns = pl.ds(pl.multiple_of(j * size, size), size)
        store_rows(gated, (rows, columns), mask_R1, weight * silu * up)
        store_rows(dh13, (0, rows, columns), mask_R1, weight * da * up * (sigmoid + silu * (1 - sigmoid)))
        store_rows(dh13, (1, rows, columns), mask_R1, weight * da * silu)
        dgate[rows, :] += jnp.where(mask_R1, jnp.sum(silu * up * da, axis=1, keepdims=True), 0.0)

    for_row_blocks(start_V[step], end_V[step], sub, compute)


def down_transposed(dh13_2RF, w13_ED2F, routing: KernelRouting, tiles, *, interpret) -> jax.Array:
    """Computes ``dgate @ w_gate^T + dup @ w_up^T`` for each sorted row.

    Returns:
        Packed rows ``[R, W]``; unused rows hold arbitrary values.
    """
    (_, rows, f_size), (experts, width, _, _), dtype = dh13_2RF.shape, w13_ED2F.shape, dh13_2RF.dtype
    blocks = width // 2 // tiles.d
    shape = cost.ExpertShape(rows, experts, width, f_size, dtype.itemsize)
    weights = (1, tiles.d, 2, f_size)
    return pl.pallas_call(
        partial(_down_transposed_kernel, sub=tiles.sub, words=pairs_are_words(dtype, interpret)),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(*routing.visits.tile_V.shape, blocks),
            in_specs=[
                row_spec(tiles.rows, 2, f_size),
                pl.BlockSpec(weights, weight_index(blocks, lambda e, j: (e, j, 0, 0))),
                pl.BlockSpec(weights, weight_index(blocks, lambda e, j: (e, blocks + j, 0, 0))),
            ],
            out_specs=row_spec(tiles.rows, packed_width(width, dtype)),
            scratch_shapes=[pltpu.VMEM((tiles.d, 2 * f_size), dtype) for _ in range(2)],
        ),
        out_shape=output((rows, packed_width(width, dtype)), packed_dtype(dtype), dh13_2RF),
        compiler_params=parameters(),
        cost_estimate=cost.down_transposed(shape, tiles),
        interpret=interpreter(interpret, dh13_2RF),
        name="routed_experts_down_transposed",
    )(*routing.visits, dh13_2RF, w13_ED2F, w13_ED2F)


def _down_transposed_kernel(group_V, tile_V, start_V, end_V, dh13, low, high, dxs, low_s, high_s, *, sub, words):
    step, j, size = visit(), pl.program_id(2), dh13.shape[2]

    def compute(rows, mask_R1):
        def product(w_s):
            gate = dot(dh13[0, rows, :], w_s[:, :size], (1, 1))
            return gate + dot(dh13[1, rows, :], w_s[:, size:], (1, 1))

        store_halves(dxs, rows, j, mask_R1, product(low_s), product(high_s))

    @pl.when(start_V[step] < end_V[step])
    def _():
        join_pair(low, low_s, words)
        join_pair(high, high_s, words)
        for_row_blocks(start_V[step], end_V[step], sub, compute)
