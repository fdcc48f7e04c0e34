"""Auxiliary-loss-free load balancing of experts as an optimizer update: the router bias follows the load."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax import Array
import jax.numpy as jnp
import numpy as np
import optax

from k2jax.params import Specs, is_spec


class BalanceState(NamedTuple):
    """State of load balancing.

    Attributes:
        count: int32 ``[]``, number of steps taken.
    """

    count: Array


def balance_router_bias(specs: Specs, rate: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """``b += rate(step) · sign(mean count − count)`` (DeepSeek-V3, arXiv:2412.19437, section 2.1.2).

    Neither weight decay nor the learning rate applies, and the gradient is ignored. ``update`` needs ``expert_tokens``,
    int32 ``[L_moe, E]``: tokens of each expert in this step, summed over micro-batches and data ranks, for the layers
    with experts in order.

    Args:
        specs: spec tree. Leaves of role ``router_bias`` are ``[layers, experts]`` (or have more axes of layers, see
            ``params.LAYER_AXES``); all others must be masked.
        rate: schedule of the bias step by optimizer step.

    Raises:
        ValueError: from ``update``, if ``expert_tokens`` is missing, or its shape differs from that of all biases.
    """
    spec_list, treedef = jax.tree.flatten(specs, is_leaf=is_spec)
    biases = [i for i, spec in enumerate(spec_list) if spec.role == "router_bias"]
    biases.sort(key=lambda i: spec_list[i].first_layer)

    def update(
        updates: Any, state: BalanceState, params: Any = None, *, expert_tokens: Array | None = None, **extra: Any
    ):
        del params, extra
        leaves = treedef.flatten_up_to(updates)
        if [i for i, leaf in enumerate(leaves) if not isinstance(leaf, optax.MaskedNode)] != sorted(biases):
            raise ValueError("load balancing updates only router biases; mask all other leaves")
        rows = sum(spec_list[i].layer_numbers.size - spec_list[i].empty for i in biases)
        if biases and (expert_tokens is None or expert_tokens.shape != (rows, spec_list[biases[0]].shape[-1])):
            got = None if expert_tokens is None else expert_tokens.shape
            raise ValueError(f"load balancing needs expert_tokens [{rows}, experts] of the step, not {got}")
        start = 0
        for i in biases:
            numbers = spec_list[i].layer_numbers
            slots = np.where(numbers < 0, 0, numbers - spec_list[i].first_layer + start)
            moved = rate(state.count) * load_sign(expert_tokens[slots])
            leaves[i] = jnp.where((numbers < 0)[..., None], 0.0, moved) if spec_list[i].empty else moved
            start += numbers.size - spec_list[i].empty
        return treedef.unflatten(leaves), BalanceState(optax.safe_increment(state.count))

    return optax.GradientTransformationExtraArgs(lambda params: BalanceState(jnp.zeros([], jnp.int32)), update)


def load_sign(expert_tokens: Array) -> Array:
    """``sign(mean − count)`` in each layer, float32 ``[..., E]``: 1 for underloaded, −1 for overloaded experts."""
    # Integer differences are exact, so that equal counts give exactly 0. With a float32 mean of counts they may not.
    relative = (expert_tokens - expert_tokens[..., :1]).astype(jnp.float32)
    return jnp.sign(relative.mean(axis=-1, keepdims=True) - relative)
