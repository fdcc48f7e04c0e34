"""Expert-parallel routed experts: dispatch, experts and combine, one chunk of tokens after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
from jax import lax
import jax.numpy as jnp

from pallas_kernels.expert_exchange.exchange import Backend, expert_combine, expert_dispatch
from pallas_kernels.implementation import Impl
from pallas_kernels.routed_experts import CAPACITY_FACTOR, routed_experts
from pallas_kernels.vma import full, vary_together


def expert_parallel(
    x: jax.Array,
    w13: jax.Array,
    w2: jax.Array,
    expert_ids: jax.Array,
    gates: jax.Array,
    *,
    axis_name: str,
    backend: Backend = "auto",
    chunks: int = 1,
    slots: int | None = None,
    max_copies: int | None = None,
    impl: Impl = "auto",
    store_fp8: tuple[str, ...] = (),
) -> tuple[jax.Array, jax.Array]:
    """Computes ``routed_experts`` with the experts divided among the P ranks of ``axis_name``; inside a ``shard_map``.

    Differentiable in x, w13, w2 and gates. Each rank's weights receive the gradients of all ranks' tokens, so that
    nothing has to be summed over ``axis_name`` afterwards.

    With ``chunks`` > 1 the tokens are exchanged and computed in that many parts, and the dispatch of a part is issued
    before the matmuls of the part before it. The two are independent, so XLA's scheduler overlaps them where the
    collective is asynchronous: in programs compiled for v5p, ``a2a`` with the compiler option
    ``xla_tpu_enable_async_all_to_all`` and ``ragged`` with ``xla_tpu_enable_async_ragged_all_to_all``. With these
    options one part's dispatch and return overlap with the down and up projections of other parts; without them, and
    with ``dense`` and ``dma``, parts run one after the other. More chunks need less memory for rows and read the
    weights more often. The weight gradients of a chunk are rounded to the dtype of the weights before they are summed.

    Args:
        x: ``[T, D]``, this rank's tokens; float32 or bfloat16.
        w13: ``[E / P, D, 2, F]``, gate and up projections of this rank's experts, in the dtype of x.
        w2: ``[E / P, F, D]``, their down projections.
        expert_ids: int32 ``[T, K]`` in [0, E], ids among all experts; E means no expert.
        gates: float32 ``[T, K]``.
        axis_name: mesh axis of the ranks.
        backend: as in ``expert_dispatch``.
        chunks: number of parts of the tokens; the last may be smaller.
        slots: as in ``expert_dispatch``, for each chunk.
        max_copies: as in ``routed_experts``, for each chunk: the most choices that one rank computes. A bound of twice
            the mean T * K needs far less memory than all P * T * K; if it is exceeded the result is NaN.
        impl: as in ``expert_dispatch`` and ``routed_experts``.
        store_fp8: as in ``routed_experts``.

    Returns:
        (y ``[T, D]`` in the dtype of x, int32 ``[]`` count of this rank's rows that found no slot).

    Raises:
        ValueError: if shapes, dtypes or names are invalid, or ``chunks`` is not positive.
    """
    if chunks < 1:
        raise ValueError(f"chunks must be positive, not {chunks}")
    experts = w13.shape[0] * lax.axis_size(axis_name)
    x, w13, w2, expert_ids, gates = vary_together(x, w13, w2, expert_ids, gates, axes=(axis_name,))
    if 0 in (expert_ids.size, w13.size):
        return full(x.shape, 0, x.dtype, x), full((), 0, jnp.int32, x)
    size = -(-x.shape[0] // chunks)
    parts = [tuple(array[start : start + size] for array in (x, expert_ids, gates)) for start in range(0, len(x), size)]
    dispatch = partial(expert_dispatch, experts=experts, axis_name=axis_name, backend=backend, slots=slots, impl=impl)
    compute = partial(routed_experts, impl=impl, max_copies=max_copies, store_fp8=store_fp8)
    return _overlapped(parts, (w13, w2), dispatch, compute)


def _overlapped(
    parts: Sequence[tuple[jax.Array, jax.Array, jax.Array]],
    weights: tuple[jax.Array, jax.Array],
    dispatch: Callable,
    compute: Callable,
) -> tuple[jax.Array, jax.Array]:
    """Outputs of all parts (tokens, expert ids, gates) and dropped rows; each part is sent before the last computes."""
    dispatched, y, dropped = dispatch(*parts[0]), [], []
    for number, (sent, _, _) in enumerate(parts, 1):
        (x_RD, ids_RK, gates_RK), route = dispatched
        if number < len(parts):
            dispatched = dispatch(*parts[number])
        # Most received choices belong to other ranks' experts: the mean rank computes as many as it sent.
        factor = CAPACITY_FACTOR * len(sent) / len(x_RD)
        y.append(expert_combine(compute(x_RD, *weights, ids_RK, gates_RK, capacity_factor=factor), route))
        dropped.append(route.dropped)
    return jnp.concatenate(y), sum(dropped)
