"""Copies beyond the capacity of their expert, computed block by block in a loop over the blocks in use.

Blocks are computed in rounds that fill a small buffer of rows, from which tokens gather. Memory therefore does not grow
with the overflow, no row is scattered, and no round runs where nothing overflows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from pallas_kernels.ops import take
from pallas_kernels.routed_experts import mlp
from pallas_kernels.routed_experts.plan import CapacityPlan, combine, copies_of_block, materialize, tokens_of
from pallas_kernels.vma import vary_together


class ExpertArrays(NamedTuple):
    """Inputs of the experts.

    Attributes:
        x_TD: tokens.
        w13_ED2F: gate and up projections.
        w2_EFD: down projections.
        gates_TK: float32 weights of the choices.
    """

    x_TD: jax.Array
    w13_ED2F: jax.Array
    w2_EFD: jax.Array
    gates_TK: jax.Array


def add_forward(
    y_TD: jax.Array,
    x_TD: jax.Array,
    gates_TK: jax.Array,
    plan: CapacityPlan,
    block: int,
    apply_expert: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array:
    """Adds the contributions of the overflow blocks, of ``block`` rows each, to y.

    Args:
        y_TD: the sum so far.
        x_TD: tokens.
        gates_TK: float32 weights of the choices.
        plan: of the choices.
        block: rows of a block.
        apply_expert: computes the outputs ``[1, block, D]`` of an expert, whose number comes first, on as many inputs.
    """
    active = gates_TK.shape[1]

    def add_block(i, carry):
        first, ys_RD = carry
        expert, copy_B = copies_of_block(plan, first + i, block)
        ys_BD = apply_expert(expert, take(x_TD, tokens_of(copy_B, active))[None])[0]
        return first, lax.dynamic_update_slice(ys_RD, ys_BD, (i * block, 0))

    def run_round(carry):
        first, y_TD = carry
        ys_RD, _ = vary_together(jnp.zeros((per_round * block, y_TD.shape[1]), y_TD.dtype), y_TD)
        _, ys_RD = lax.fori_loop(0, jnp.minimum(per_round, plan.blocks - first), add_block, (first, ys_RD))
        place_TK = plan.overflow_place(first, block)
        return first + per_round, y_TD + combine(ys_RD, place_TK, gates_TK)

    per_round = blocks_per_round(gates_TK.size, block)
    return lax.while_loop(lambda carry: carry[0] < plan.blocks, run_round, (_first_block(plan), y_TD))[1]


def add_backward(grads: ExpertArrays, dy_TD: jax.Array, arrays: ExpertArrays, plan: CapacityPlan, block: int):
    """Adds the contributions of the overflow blocks to the gradients of x, w13, w2 and gates."""
    x_TD, w13_ED2F, w2_EFD, gates_TK = arrays
    active = gates_TK.shape[1]

    def add_block(i, carry):
        first, dxs_RD, dgate_R, dw13_ED2F, dw2_EFD = carry
        expert, copy_B = copies_of_block(plan, first + i, block)
        token_B = tokens_of(copy_B, active)
        x_BD, dy_BD = take(x_TD, token_B)[None], take(dy_TD, token_B)[None]
        gate_B = materialize(take(gates_TK.reshape(-1), copy_B))[None]
        w13, w2 = weights_of((w13_ED2F, w2_EFD), expert)
        h13 = mlp.preactivation(x_BD, w13)
        dx_BD, dw13, dw2, dgate_B = mlp.backward(x_BD, h13, dy_BD, gate_B, w13, w2)
        dxs_RD = lax.dynamic_update_slice(dxs_RD, dx_BD[0], (i * block, 0))
        dgate_R = lax.dynamic_update_slice(dgate_R, dgate_B[0], (i * block,))
        return first, dxs_RD, dgate_R, _add_to(dw13_ED2F, expert, dw13), _add_to(dw2_EFD, expert, dw2)

    def run_round(carry):
        first, dx_TD, dw13_ED2F, dw2_EFD, dgates_TK = carry
        dxs_RD, _ = vary_together(jnp.zeros((per_round * block, dx_TD.shape[1]), dx_TD.dtype), dx_TD)
        dgate_R, _ = vary_together(jnp.zeros((per_round * block,), dgates_TK.dtype), dgates_TK)
        carry = (first, dxs_RD, dgate_R, dw13_ED2F, dw2_EFD)
        carry = lax.fori_loop(0, jnp.minimum(per_round, plan.blocks - first), add_block, carry)
        _, dxs_RD, dgate_R, dw13_ED2F, dw2_EFD = carry
        place_TK = plan.overflow_place(first, block)
        dx_TD += combine(dxs_RD, place_TK)
        return first + per_round, dx_TD, dw13_ED2F, dw2_EFD, dgates_TK + take(dgate_R, place_TK)

    per_round = blocks_per_round(gates_TK.size, block)
    summed = lax.while_loop(lambda carry: carry[0] < plan.blocks, run_round, (_first_block(plan), *grads))
    return ExpertArrays(*summed[1:])


def blocks_per_round(copies: int, block: int) -> int:
    """Number of blocks with about a quarter of all copies: few rounds, and a buffer smaller than that of the bulk."""
    return -(-copies // (4 * block))


def _first_block(plan: CapacityPlan) -> jax.Array:
    """Index 0 of the first block, varying over mesh axes as the plan does."""
    return vary_together(jnp.int32(0), plan.blocks)[0]


def weights_of(weights: Any, expert: jax.Array) -> Any:
    """The part ``[1, ...]`` of one expert in a tree of arrays ``[E, ...]``."""
    return jax.tree.map(lambda each_E: lax.dynamic_slice_in_dim(each_E, expert, 1), weights)


def _add_to(total_E, expert, update_1):
    return lax.dynamic_update_slice_in_dim(total_E, weights_of(total_E, expert) + update_1, expert, 0)
