"""Dispatch and combine of tokens. Each is the transpose of the other on the same route.

The backward pass therefore reuses the route: it plans nothing and sends no ids again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import jax
from jax import lax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.expert_exchange import all_gather, all_to_all
from pallas_kernels.expert_exchange.plan import row_groups
from pallas_kernels.expert_exchange.route import ExchangeSettings, Route
from pallas_kernels.implementation import Impl, resolve
from pallas_kernels.routed_experts.fp8_residuals import name_plan
from pallas_kernels.vma import vary_together

Backend = Literal["auto", "dense", "a2a", "ragged", "dma"]
BACKENDS = get_args(Backend)


class Received(NamedTuple):
    """The rows that a rank receives, as ``routed_experts`` takes them.

    Attributes:
        x: ``[R, D]``, tokens; rows without an expert hold arbitrary values, possibly NaN.
        expert_ids: int32 ``[R, K]``, ids among this rank's experts, in [0, E / P]; E / P means no expert.
        gates: float32 ``[R, K]``; 0 where there is no expert.
    """

    x: jax.Array
    expert_ids: jax.Array
    gates: jax.Array


def expert_dispatch(
    x: jax.Array,
    expert_ids: jax.Array,
    gates: jax.Array,
    *,
    experts: int,
    axis_name: str,
    backend: Backend = "auto",
    slots: int | None = None,
    impl: Impl = "auto",
) -> tuple[Received, Route]:
    """Sends each token once to every rank that owns one of its experts; inside a ``shard_map`` over ``axis_name``.

    Rank p of P owns experts ``[p * E / P, (p + 1) * E / P)``. Differentiable in x and gates; the transpose is
    ``expert_combine`` on the same route. Rows are gathered, never scattered. The route and the received gates have the
    name ``expert_plan`` for policies of ``jax.checkpoint`` (see ``routed_experts.NAMES``). With a policy that saves
    ``expert_plan`` and ``expert_input``, the backward pass plans nothing and sends no ids.

    With ``dense`` every rank receives all tokens of all ranks (R = P * T), with ids masked to its own experts. With
    ``a2a``, ``ragged`` and ``dma`` it receives up to C rows from each rank (R = P * C).

    Args:
        x: ``[T, D]``, this rank's tokens; float32 or bfloat16.
        expert_ids: int32 ``[T, K]`` in [0, E], ids among all experts; E means no expert.
        gates: float32 ``[T, K]``.
        experts: E, a multiple of P.
        axis_name: mesh axis of the ranks.
        backend: collective that sends the rows, see the package. ``auto`` is ``ragged`` on a TPU and ``a2a`` elsewhere.
        slots: most rows from one rank to another, rounded up to C, a multiple of 16. The default is T, with which no
            row can be dropped. ``dense`` drops nothing for any value.
        impl: ``dma`` is a kernel without an ``xla`` form: it takes ``pallas``, or ``interpret`` on emulated devices.

    Returns:
        (received, route); ``route.dropped`` counts the rows of this rank that found no slot.

    Raises:
        ValueError: if shapes, dtypes, E, slots or names are invalid.
    """
    _check(x, expert_ids, gates)
    exchange = _settings(backend, impl, axis_name, experts, max(1, x.shape[0]) if slots is None else slots)
    x, expert_ids, gates = vary_together(x, expert_ids, gates, axes=(axis_name,))
    plan_route = _backend_module(exchange).plan_route
    route, ids_RK, gates_RK = plan_route(exchange, expert_ids, lax.stop_gradient(gates))
    route = replace(route, plan=name_plan(route.plan))
    x_RD, gates_RK = _dispatch(x, gates, name_plan(gates_RK), route)
    return Received(x_RD, ids_RK, gates_RK), route


def expert_combine(y: jax.Array, route: Route) -> jax.Array:
    """Sends each row back to its token and sums a token's rows in float32; inside the same ``shard_map``.

    Differentiable; the transpose sends cotangents along the route on which ``expert_dispatch`` sent tokens. Rows
    without an expert are never read, and their cotangents hold arbitrary values.

    Args:
        y: ``[R, D]``, results of this rank's experts for the received rows.
        route: from ``expert_dispatch``.

    Returns:
        ``[T, D]`` in the dtype of ``y``.
    """
    return _combine(vary_together(y, axes=(route.exchange.axis_name,))[0], route)


@jax.custom_vjp
def _dispatch(x_TD, gates_TK, gates_RK, route):
    """Sends rows; ``gates_RK`` are the gates that the plan has already sent."""
    del gates_TK
    return _backend_module(route.exchange).send_rows(route, x_TD), gates_RK


def _dispatch_forward(x_TD, gates_TK, gates_RK, route):
    return _dispatch(x_TD, gates_TK, gates_RK, route), route


def _dispatch_backward(route, cotangents):
    dx_RD, dgates_RK = cotangents
    return_gates = _backend_module(route.exchange).return_gates
    return _combine(dx_RD, route), return_gates(route, dgates_RK), jnp.zeros_like(dgates_RK), None


@jax.custom_vjp
def _combine(y_RD, route):
    return _backend_module(route.exchange).return_rows(route, y_RD)


def _combine_forward(y_RD, route):
    return _combine(y_RD, route), route


def _combine_backward(route, dy_TD):
    return _backend_module(route.exchange).send_rows(route, dy_TD), None


_dispatch.defvjp(_dispatch_forward, _dispatch_backward)
_combine.defvjp(_combine_forward, _combine_backward)


def resolve_backend(backend: Backend, impl: Impl) -> str:
    """Resolves ``auto``: ``ragged`` where kernels are compiled for a TPU, ``a2a`` elsewhere.

    On a TPU a dropless ``a2a`` sends P * T rows whatever the routing; ``ragged`` sends the rows in use and, unlike
    ``dma``, overlaps with matmuls. Where the ranks are devices of one host, padding costs little.

    Raises:
        ValueError: if the name is unknown.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend is one of {', '.join(BACKENDS)}, not {backend!r}")
    if backend == "auto":
        return "ragged" if resolve(impl) == "pallas" else "a2a"
    return backend


def _settings(backend, impl, axis_name, experts, slots):
    backend, ranks = resolve_backend(backend, impl), lax.axis_size(axis_name)
    if experts % ranks or experts < ranks:
        raise ValueError(f"{experts} experts cannot be divided evenly among {ranks} ranks")
    if slots < 1:
        raise ValueError(f"slots must be positive, not {slots}")
    if backend == "dma" and resolve(impl) == "xla":
        raise ValueError("the dma backend is a TPU kernel; set impl to 'pallas' or 'interpret'")
    interpret = pltpu.InterpretParams() if resolve(impl) == "interpret" else False
    return ExchangeSettings(backend, axis_name, experts, ranks, row_groups(slots), interpret)


def _backend_module(exchange):
    return all_gather if exchange.backend == "dense" else all_to_all


def _check(x, expert_ids, gates):
    if x.ndim != 2 or expert_ids.ndim != 2 or expert_ids.shape != gates.shape or expert_ids.shape[0] != x.shape[0]:
        shapes = f"{x.shape}, {expert_ids.shape}, {gates.shape}"
        raise ValueError(f"expected x [T, D], expert_ids and gates [T, K]; got {shapes}")
    if not expert_ids.shape[1]:
        raise ValueError("expert_ids [T, K] need a choice for each token; got K 0")
    if expert_ids.dtype != jnp.int32 or gates.dtype != jnp.float32:
        raise ValueError(f"expected int32 ids and float32 gates; got {expert_ids.dtype}, {gates.dtype}")
