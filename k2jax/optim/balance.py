"""Auxiliary-loss-free expert balancing as an optimizer update: the router bias follows the load, not a gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax import Array
import jax.numpy as jnp
import numpy as np
import optax

from k2jax.params import Specs, is_spec


class BalanceState(NamedTuple):
    """``count``: int32 [], steps taken."""

    count: Array


def balance_router_bias(specs: Specs, rate: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """``b += rate(step) · sign(mean count − count)`` (DeepSeek-V3, arXiv:2412.19437, section 2.1.2).

    No decay, no learning rate, and the gradient is ignored. ``update`` needs ``expert_tokens [L_moe, E]``: tokens that
    each expert got in this step, summed over micro-batches and data ranks, for the layers with experts in order.

    Args:
        specs: spec tree; its leaves of role ``router_bias`` are ``[layers, experts]`` (or have more axes of layers, see
            ``params.LAYER_AXES``). Others must be masked.
        rate: step of the bias, by optimizer step.

    Raises:
        ValueError: from ``update``: no ``expert_tokens``, or of another shape than the biases together.
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
            raise ValueError("balancing updates router biases and nothing else")
        rows = sum(spec_list[i].layer_numbers.size - spec_list[i].empty for i in biases)
        if biases and (expert_tokens is None or expert_tokens.shape != (rows, spec_list[biases[0]].shape[-1])):
            got = None if expert_tokens is None else expert_tokens.shape
            raise ValueError(f"balancing needs expert_tokens [{rows}, experts] of the step, not {got}")
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
    """``sign(mean − count)`` per layer, float32 ``[..., E]``: 1 for starved, −1 for crowded experts."""
    # Differences are exact in integers, so that equal counts give exactly 0 where a float32 mean of them may not.
    relative = (expert_tokens - expert_tokens[..., :1]).astype(jnp.float32)
    return jnp.sign(relative.mean(axis=-1, keepdims=True) - relative)
