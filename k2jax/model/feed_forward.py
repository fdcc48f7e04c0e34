"""SwiGLU feed-forward: dense, and as routed plus shared experts."""

from __future__ import annotations

from collections.abc import Callable
import functools
import math

import jax
from jax import Array
import jax.numpy as jnp

from k2jax.config.schema import ModelConfig
from k2jax.errors import UserError
from k2jax.model.collectives import enter_tensor, mark_replicated
from k2jax.model.linear import linear
from k2jax.model.remat import named
from k2jax.model.router import Routing, route
from pallas_kernels.routed_experts import NAMES, TooManyCopiesError, routed_experts
from pallas_kernels.routed_experts.fp8_residuals import from_fp8
from pallas_kernels.routed_experts.panels import Panels, experts_of_panels

WIDE_BELOW = 128
"""Number of tokens from which gate and up are two products."""


def swiglu(params: dict, x: Array, kind: str, store_fp8: tuple[str, ...] = ()) -> Array:
    """Computes ``(silu(x W_gate) * (x W_up)) W_down``.

    Args:
        params: ``w13 [D, 2, F]`` (gate, up) and ``w2 [F, D]``.
        x: ``[..., D]``.
        kind: ``dense`` or ``shared``, the prefix of the names of its activations.
        store_fp8: names of activations that the backward pass finds in FP8.
    """
    x = enter_tensor(x, params["w13"])
    gate_up = _gate_up(x, params["w13"])
    name = f"{kind}_gate_up"
    if name in store_fp8:
        return from_fp8(_activate_and_project, gate_up, params["w2"], name)
    gate, up = named(gate_up, name)
    return linear(named(jax.nn.silu(gate) * up, f"{kind}_activation"), params["w2"])


def _gate_up(x: Array, w13: Array) -> tuple[Array, Array]:
    """Both products of ``x [..., D]``.

    As two, since the gradient of one wide product, cut in half, costs XLA:CPU half as much again. For the few tokens of
    a decoding step as one: there the halves of the weight, which have to be copied out of it, are what costs.
    """
    width, _, hidden = w13.shape
    if math.prod(x.shape[:-1]) >= WIDE_BELOW:
        return linear(x, w13[:, 0]), linear(x, w13[:, 1])
    both = linear(x, w13.reshape(width, 2 * hidden))
    return both[..., :hidden], both[..., hidden:]


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
    *,
    store_fp8: tuple[str, ...] = (),
    replayed: Array | None = None,
) -> tuple[Array, Routing, Array]:
    """Adds the outputs of the routed and the shared experts.

    Args:
        params: this layer's ``router``, ``router_bias``, ``experts`` (possibly in panels, see
            ``routed_experts.panels``) and, where there are any, ``shared`` weights.
        x: ``[B, S, D]``, normalised.
        real: ``[B, S]`` bool, False on padding.
        config: the architecture.
        experts: ``(tokens [T, D], w13, w2, expert_ids [T, K], gates [T, K]) -> ([T, D], dropped rows [])`` where the
            experts are spread over devices; None computes all of them on this device.
        store_fp8: names of activations that the backward pass finds in FP8; a given ``experts`` chooses its own.
        replayed: ``[B, S, K]``, see ``router.route``.

    Returns:
        ``[B, S, D]``, the routing, and how many rows (one for each token and rank of experts) were dropped.
    """
    routing = route(params["router"], params["router_bias"], x, real, config, replayed)
    inputs = enter_tensor((x, routing.expert_ids, routing.gates), params["experts"]["w13"])
    x_TD, ids_TK, gates_TK = (array.reshape(-1, array.shape[-1]) for array in inputs)
    if experts is None:
        experts = functools.partial(_local_experts, config=config, store_fp8=store_fp8)
    with jax.named_scope("routed_experts"):
        try:
            routed_TD, dropped = experts(x_TD, params["experts"]["w13"], params["experts"]["w2"], ids_TK, gates_TK)
        except TooManyCopiesError as error:
            raise UserError(
                f"{len(x_TD):,} tokens on a device at a time are more than the experts' kernels take; raise "
                "config.train.micro_batches or config.parallel.expert_chunks"
            ) from error
    out = routed_TD.reshape(x.shape)
    if config.moe.shared_experts:
        with jax.named_scope("shared_experts"):
            out = out + swiglu(params["shared"], inputs[0], "shared", store_fp8)
    return out.astype(x.dtype), routing, mark_replicated(dropped, routing.counts)


def _local_experts(
    x: Array,
    w13: Array | Panels,
    w2: Array | Panels,
    ids: Array,
    gates: Array,
    *,
    config: ModelConfig,
    store_fp8: tuple[str, ...],
) -> tuple[Array, Array]:
    """The routed experts of one device; an engine on a CPU holds their weights in panels."""
    dropped = jnp.zeros((), jnp.int32)
    if isinstance(w13, tuple):
        return experts_of_panels(x, w13, w2, ids, gates, capacity_factor=config.moe.capacity_factor), dropped
    routed = routed_experts(
        x,
        w13,
        w2,
        ids,
        gates,
        capacity_factor=config.moe.capacity_factor,
        impl=config.kernels,
        store_fp8=tuple(name for name in store_fp8 if name in NAMES),
    )
    return routed, dropped
