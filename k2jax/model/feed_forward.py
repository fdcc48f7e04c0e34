"""SwiGLU feed-forward: dense, and as routed plus shared experts."""

from __future__ import annotations

import jax
from jax import Array

from k2jax.config.schema import ModelConfig
from k2jax.model.linear import linear
from k2jax.model.router import Routing, route
from pallas_kernels.routed_experts import routed_experts


def swiglu(params: dict, x: Array) -> Array:
    """``(silu(x W_gate) * (x W_up)) W_down`` with ``w13 [D, 2, F]`` (gate, up) and ``w2 [F, D]``; x is ``[..., D]``."""
    w13 = params["w13"]  # two products: the gradient of one wide product, cut in half, costs XLA:CPU half as much again
    return linear(jax.nn.silu(linear(x, w13[:, 0])) * linear(x, w13[:, 1]), params["w2"])


def moe(params: dict, x: Array, real: Array, config: ModelConfig) -> tuple[Array, Routing]:
    """Routed plus shared experts.

    Args:
        params: this layer's ``router``, ``router_bias``, ``experts`` and, where there are any, ``shared`` weights.
        x: ``[B, S, D]``, normalised.
        real: ``[B, S]`` bool, False on padding.
        config: the architecture.

    Returns:
        ``[B, S, D]`` and the routing.
    """
    routing = route(params["router"], params["router_bias"], x, real, config)
    tokens = x.reshape(-1, config.d_model)
    with jax.named_scope("routed_experts"):
        routed = routed_experts(
            tokens,
            params["experts"]["w13"],
            params["experts"]["w2"],
            routing.expert_ids.reshape(-1, config.active_experts),
            routing.gates.reshape(-1, config.active_experts),
            capacity_factor=config.capacity_factor,
            impl=config.kernels,
        ).reshape(x.shape)
    if config.shared_experts:
        with jax.named_scope("shared_experts"):
            routed = routed + swiglu(params["shared"], x)
    return routed.astype(x.dtype), routing
