"""Routed experts on a TPU: five kernels and their custom VJP.

Forward: `up` (gather, gate and up projections, SwiGLU), `down` (down projection, gate), `combine_rows`.
Backward: `activation_gradients` (gather of dy, w2 transposed, SwiGLU backwards), `down_transposed`, `combine_rows`, and
`grouped_matmul.mosaic.multiply_transposed` for both weight gradients. The residuals are the inputs, the routing and
the pre-activation of the rows in use; those that a policy of jax.checkpoint may save are named. The backward writes
sorted copies of x and dy: the weight gradients read each of them once for each column tile, so that one copy costs less
than gathering rows again for each.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.grouped_matmul import mosaic as grouped
from pallas_kernels.grouped_matmul.tiling import row_tile, tile_of
from pallas_kernels.routed_experts.mosaic_backward import activation_gradients, down_transposed
from pallas_kernels.routed_experts.mosaic_combine import combine_rows
from pallas_kernels.routed_experts.mosaic_forward import down, up
from pallas_kernels.routed_experts.plan import take
from pallas_kernels.routed_experts.routing import make_routing
from pallas_kernels.routed_experts.rows import pack
from pallas_kernels.routed_experts.stored import name_plan, restore, store
from pallas_kernels.varying import vary_together


class Tiles(NamedTuple):
    """Sizes of blocks: sorted rows, rows multiplied at a time, columns of F, columns of each half of D, tokens."""

    rows: int
    sub: int
    f: int
    d: int
    tokens: int
    weights: grouped.Tiles | None = None


class Settings(NamedTuple):
    """What does not vary: the bound on copies with an expert, the tiles, the interpreter if any, what FP8 stores."""

    max_copies: int
    tiles: Tiles
    interpret: bool | pltpu.InterpretParams
    store_fp8: tuple[str, ...] = ()


def default_tiles(max_copies: int, experts: int, f_size: int, width: int, itemsize: int) -> Tiles:
    """Tiles that keep every kernel under 48 MiB of VMEM at D = 7168 and F = 2048."""
    rows = row_tile(max_copies, experts, 512 if itemsize == 2 else 128)
    return Tiles(rows, 128, tile_of(f_size, 128), tile_of(width // 2, 512 // itemsize), 64)


def experts_mosaic(x_TD, w13_ED2F, w2_EFD, expert_ids_TK, gates_TK, settings: Settings):
    """Compute `routed_experts`."""
    return _experts(*vary_together(x_TD, w13_ED2F, w2_EFD, expert_ids_TK, gates_TK), settings)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _experts(x_TD, w13_ED2F, w2_EFD, expert_ids_TK, gates_TK, settings):
    return _forward(x_TD, w13_ED2F, w2_EFD, expert_ids_TK, gates_TK, settings, keep=False)[0]


def _forward(x_TD, w13_ED2F, w2_EFD, expert_ids_TK, gates_TK, settings, *, keep=True):
    max_copies, tiles, interpret, store_fp8 = settings
    routing = make_routing(expert_ids_TK, gates_TK, w2_EFD.shape[0], max_copies, tiles.rows, tiles.tokens)
    routing = name_plan(routing)
    a_RF, h13_2RF = up(pack(x_TD), w13_ED2F, routing, tiles, keep_preactivation=keep, interpret=interpret)
    ys_RW = down(a_RF, w2_EFD, routing, tiles, interpret=interpret)
    y_TD = combine_rows(ys_RW, routing, x_TD.shape, x_TD.dtype, tiles, interpret=interpret)
    if not keep:
        return y_TD, None
    stored_x = store(x_TD, "expert_input", "expert_input" in store_fp8)
    stored_h13 = store(h13_2RF, "expert_gate_up", "expert_gate_up" in store_fp8)
    return y_TD, (stored_x, w13_ED2F, w2_EFD, routing, stored_h13)


def _backward(settings, residuals, dy_TD):
    _, tiles, interpret, _ = settings
    stored_x, w13_ED2F, w2_EFD, routing, stored_h13 = residuals
    x_TD, h13_2RF = restore((stored_x, stored_h13), w2_EFD.dtype)
    dh13_2RF, gated_RF, dys_RD, dgate_R1 = activation_gradients(
        pack(dy_TD), h13_2RF, w2_EFD, routing, tiles, interpret=interpret
    )
    dxs_RW = down_transposed(dh13_2RF, w13_ED2F, routing, tiles, interpret=interpret)
    dx_TD = combine_rows(dxs_RW, routing, x_TD.shape, x_TD.dtype, tiles, interpret=interpret)
    sums = partial(grouped.multiply_transposed, sizes_G=routing.sizes_E, tiles=tiles.weights, interpret=interpret)
    dw13_ED2F = sums(x_TD.at[routing.token_IR.reshape(-1)].get(mode="promise_in_bounds"), dh13_2RF)
    dw2_EFD = sums(gated_RF, dys_RD[None])
    dgates_TK = jnp.where(routing.excess_1 > 0, jnp.nan, take(dgate_R1[:, 0], routing.place_TK))
    return dx_TD, dw13_ED2F, dw2_EFD, None, dgates_TK


_experts.defvjp(_forward, _backward)
