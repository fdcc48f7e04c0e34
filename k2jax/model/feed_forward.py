"""SwiGLU feed-forward: dense, and as routed plus shared experts."""

from __future__ import annotations

from collections.abc import Callable
import functools

import jax
from jax import Array
import jax.numpy as jnp

from k2jax.config.schema import ModelConfig
from k2jax.errors import UserError
from k2jax.model.linear import linear
from k2jax.model.remat import named
from k2jax.model.router import Routing, route
from k2jax.model.spread import alike, to_parts
from pallas_kernels.routed_experts import NAMES, TooManyCopiesError, routed_experts
from pallas_kernels.routed_experts.stored import from_fp8


def swiglu(params: dict, x: Array, kind: str, store_fp8: tuple[str, ...] = ()) -> Array:
    """``(silu(x W_gate) * (x W_up)) W_down``.

    Args:
        params: ``w13 [D, 2, F]`` (gate, up) and ``w2 [F, D]``.
        x: ``[..., D]``.
        kind: ``dense`` or ``shared``, how the names of its activations begin.
        store_fp8: names of activations that the backward pass finds in FP8.
    """
    x = to_parts(x, params["w13"])
    w13 = params["w13"]  # two products: the gradient of one wide product, cut in half, costs XLA:CPU half as much again
    gate_up = linear(x, w13[:, 0]), linear(x, w13[:, 1])
    name = f"{kind}_gate_up"
    if name in store_fp8:
        return from_fp8(_activate_and_project, gate_up, params["w2"], name)
    gate, up = named(gate_up, name)
    return linear(named(jax.nn.silu(gate) * up, f"{kind}_activation"), params["w2"])


def _activate_and_project(gate_up: tuple[Array, Array], w2: Array) -> Array:
    gate, up = gate_up
    return linear(jax.nn.silu(gate) * up, w2)


Experts = Callable[[Array, Array, Array, Array, Array], tuple[Array, Array]]


def moe(
    params: dict,
    x: Array,
    real: Array,
    config: ModelConfig,
    experts: Experts | None = None,
    store_fp8: tuple[str, ...] = (),
) -> tuple[Array, Routing, Array]:
    """Routed plus shared experts.

    Args:
        params: this layer's ``router``, ``router_bias``, ``experts`` and, where there are any, ``shared`` weights.
        x: ``[B, S, D]``, normalised.
        real: ``[B, S]`` bool, False on padding.
        config: the architecture.
        experts: ``(tokens [T, D], w13, w2, expert_ids [T, K], gates [T, K]) -> ([T, D], dropped rows [])`` where the
            experts are not all on this device; None computes them here.
        store_fp8: names of activations that the backward pass finds in FP8; ``experts`` sees to its own.

    Returns:
        ``[B, S, D]``, the routing, and how many rows (one for each token and rank of experts) were dropped.
    """
    routing = route(params["router"], params["router_bias"], x, real, config)
    x, expert_ids, gates = to_parts((x, routing.expert_ids, routing.gates), params["experts"]["w13"])
    if experts is None:
        experts = functools.partial(_experts_here, config=config, store_fp8=store_fp8)
    flat = [array.reshape(-1, array.shape[-1]) for array in (x, expert_ids, gates)]
    with jax.named_scope("routed_experts"):
        try:
            routed, dropped = experts(flat[0], params["experts"]["w13"], params["experts"]["w2"], *flat[1:])
        except TooManyCopiesError as error:
            raise UserError(
                f"{len(flat[0]):,} tokens on a device at a time are more than the experts' kernels take; raise "
                "config.train.micro_batches or config.parallel.expert_chunks"
            ) from error
        routed = routed.reshape(x.shape)
    if config.shared_experts:
        with jax.named_scope("shared_experts"):
            routed = routed + swiglu(params["shared"], x, "shared", store_fp8)
    return routed.astype(x.dtype), routing, alike(dropped, routing.counts)


def _experts_here(*operands: Array, config: ModelConfig, store_fp8: tuple[str, ...]) -> tuple[Array, Array]:
    routed = routed_experts(
        *operands,
        capacity_factor=config.capacity_factor,
        impl=config.kernels,
        store_fp8=tuple(name for name in store_fp8 if name in NAMES),
    )
    return routed, jnp.zeros((), jnp.int32)
