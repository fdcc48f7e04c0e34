"""Dropless routed experts in plain JAX: one batched matmul up to the capacity, and overflow blocks beyond it.

Everything is inside one custom VJP, so that permutations of rows are gathers in both directions (a scatter-add of rows
is slow on CPU and TPU) and the residuals are few: the inputs, the plan and the pre-activation of the bulk. Residuals
that a policy of ``jax.checkpoint`` may save are named.
"""

from functools import partial
from typing import NamedTuple

import jax
from jax.ad_checkpoint import checkpoint_name

from pallas_kernels.ops import take
from pallas_kernels.routed_experts import mlp, overflow
from pallas_kernels.routed_experts.fp8_residuals import restore, store
from pallas_kernels.routed_experts.plan import combine, materialize, plan_capacity, tokens_of


class CapacitySettings(NamedTuple):
    """Static settings of a call.

    Attributes:
        slots: C, rows of an expert in the bulk.
        block: rows of an overflow block.
        store_fp8: names of the residuals that are stored in FP8.
    """

    slots: int
    block: int
    store_fp8: tuple[str, ...] = ()


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def experts_xla(x_TD, w13_ED2F, w2_EFD, expert_ids_TK, gates_TK, settings: CapacitySettings):
    """Computes ``routed_experts`` in plain JAX."""
    return _forward(x_TD, w13_ED2F, w2_EFD, expert_ids_TK, gates_TK, settings)[0]


def _forward(x_TD, w13_ED2F, w2_EFD, expert_ids_TK, gates_TK, settings):
    slots, block, store_fp8 = settings
    plan = checkpoint_name(plan_capacity(expert_ids_TK, w13_ED2F.shape[0], slots, block), "expert_plan")
    xs_ECD = take(x_TD, tokens_of(plan.copy_of_slot_EC, gates_TK.shape[1]))
    h13_EC2F = mlp.preactivation(xs_ECD, w13_ED2F)
    y_TD = combine(_rows(mlp.output(h13_EC2F, w2_EFD)), plan.place_of_copy_TK, gates_TK)

    def apply_expert(expert, xs_1BD):
        w13, w2 = overflow.weights_of((w13_ED2F, w2_EFD), expert)
        return mlp.output(mlp.preactivation(xs_1BD, w13), w2)

    y_TD = overflow.add_forward(y_TD, x_TD, gates_TK, plan, block, apply_expert)
    stored_x = store(x_TD, "expert_input", "expert_input" in store_fp8)
    # Gate and up become separate rows, so that no FP8 tile holds numbers of both.
    stored_h13 = store(_halves(h13_EC2F), "expert_gate_up", "expert_gate_up" in store_fp8)
    return y_TD.astype(x_TD.dtype), (stored_x, w13_ED2F, w2_EFD, gates_TK, plan, stored_h13)


def _backward(settings, residuals, dy_TD):
    stored_x, w13_ED2F, w2_EFD, gates_TK, plan, stored_h13 = residuals
    x_TD, h13_halves = restore((stored_x, stored_h13), w2_EFD.dtype)
    h13_EC2F = h13_halves.reshape(*plan.copy_of_slot_EC.shape, -1)
    copy_EC, place_TK = plan.copy_of_slot_EC, plan.place_of_copy_TK
    token_EC = tokens_of(copy_EC, gates_TK.shape[1])
    xs_ECD, dys_ECD = take(x_TD, token_EC), take(dy_TD, token_EC)
    gate_EC = materialize(take(gates_TK.reshape(-1), copy_EC))
    dxs_ECD, dw13_ED2F, dw2_EFD, dgate_EC = mlp.backward(xs_ECD, h13_EC2F, dys_ECD, gate_EC, w13_ED2F, w2_EFD)
    arrays = overflow.ExpertArrays(x_TD, w13_ED2F, w2_EFD, gates_TK)
    dx_TD, dgates_TK = combine(_rows(dxs_ECD), place_TK), take(dgate_EC.reshape(-1), place_TK)
    grads = overflow.ExpertArrays(dx_TD, dw13_ED2F, dw2_EFD, dgates_TK)
    grads = overflow.add_backward(grads, dy_TD, arrays, plan, settings.block)
    dx_TD, dw13_ED2F, dw2_EFD, dgates_TK = jax.tree.map(lambda grad, array: grad.astype(array.dtype), grads, arrays)
    return dx_TD, dw13_ED2F, dw2_EFD, None, dgates_TK


experts_xla.defvjp(_forward, _backward)


def _halves(h13_EC2F):
    """Reshapes ``[E, C, 2F]`` to ``[E, 2C, F]``."""
    experts, _, width = h13_EC2F.shape
    return h13_EC2F.reshape(experts, -1, width // 2)


def _rows(array_ECD):
    return array_ECD.reshape(-1, array_ECD.shape[-1])
