"""Routed experts on a TPU: five kernels and their custom VJP.

Forward: ``up`` (gather, gate and up projections, SwiGLU), ``down`` (down projection, gate), ``combine_rows``.
Backward: ``activation_gradients`` (gather of dy, w2 transposed, SwiGLU backwards), ``down_transposed``,
    ``combine_rows``,
and ``grouped_matmul.mosaic.multiply_transposed`` for both weight gradients. The residuals are the inputs, the routing
and the pre-activation of the rows in use; those that a policy of ``jax.checkpoint`` may save are named. The backward
pass writes sorted copies of x and dy: the weight gradients read each of them once for each column tile, so that one
copy costs less than gathering the rows again each time.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.grouped_matmul import mosaic as grouped
from pallas_kernels.grouped_matmul.tiling import row_tile, tile_of
from pallas_kernels.ops import take
from pallas_kernels.routed_experts.fp8_residuals import name_plan, restore, store
from pallas_kernels.routed_experts.mosaic_backward import activation_gradients, down_transposed
from pallas_kernels.routed_experts.mosaic_combine import combine_rows
from pallas_kernels.routed_experts.mosaic_forward import down, up
from pallas_kernels.routed_experts.packed_rows import pack
from pallas_kernels.routed_experts.routing import plan_routing
from pallas_kernels.vma import vary_together


class ExpertTiles(NamedTuple):
    """Sizes of blocks.

    Attributes:
        rows: sorted rows of a tile.
        sub: rows that are multiplied at a time.
        f: columns of F.
        d: columns of each half of D.
        tokens: tokens of a tile of the combine kernel.
        weights: tiles of the weight gradients; None chooses them.
    """

    rows: int
    sub: int
    f: int
    d: int
    tokens: int
    weights: grouped.MatmulTiles | None = None


class ExpertSettings(NamedTuple):
    """Static settings of a call.

    Attributes:
        max_copies: most copies with an expert.
        tiles: sizes of blocks.
        interpret: interpreter of the kernels, or False to compile them.
        store_fp8: names of the residuals that are stored in FP8.
    """

    max_copies: int
    tiles: ExpertTiles
    interpret: bool | pltpu.InterpretParams
    store_fp8: tuple[str, ...] = ()


def default_tiles(max_copies: int, experts: int, f_size: int, width: int, itemsize: int) -> ExpertTiles:
    """Returns tiles that keep every kernel under 48 MiB of VMEM at D = 7168 and F = 2048."""
    rows = row_tile(max_copies, experts, 512 if itemsize == 2 else 128)
    return ExpertTiles(rows, 128, tile_of(f_size, 128), tile_of(width // 2, 512 // itemsize), 64)


def experts_mosaic(x_TD, w13_ED2F, w2_EFD, expert_ids_TK, gates_TK, settings: ExpertSettings):
    """Computes ``routed_experts`` with the kernels."""
    return _experts(*vary_together(x_TD, w13_ED2F, w2_EFD, expert_ids_TK, gates_TK), settings)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _experts(x_TD, w13_ED2F, w2_EFD, expert_ids_TK, gates_TK, settings):
    return _forward(x_TD, w13_ED2F, w2_EFD, expert_ids_TK, gates_TK, settings, keep=False)[0]


def _forward(x_TD, w13_ED2F, w2_EFD, expert_ids_TK, gates_TK, settings, *, keep=True):
    max_copies, tiles, interpret, store_fp8 = settings
    routing = plan_routing(expert_ids_TK, gates_TK, w2_EFD.shape[0], max_copies, tiles.rows, tiles.tokens)
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
