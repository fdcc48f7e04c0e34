"""Dropless routed experts: each token through its K chosen SwiGLU experts, weighted by its gates."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.implementation import Impl, resolve
from pallas_kernels.routed_experts.mosaic import Settings, Tiles, default_tiles, experts_mosaic
from pallas_kernels.routed_experts.plan import capacity, expert_counts, make_plan
from pallas_kernels.routed_experts.routing import TooManyCopiesError, make_routing
from pallas_kernels.routed_experts.xla import experts_xla

__all__ = ["NAMES", "TooManyCopiesError", "expert_counts", "kept_rows", "routed_experts"]

NAMES = ("expert_input", "expert_gate_up", "expert_plan")
"""What the backward pass finds of the forward pass, by the names that policies of ``jax.checkpoint`` know."""


def routed_experts(
    x: jax.Array,
    w13: jax.Array,
    w2: jax.Array,
    expert_ids: jax.Array,
    gates: jax.Array,
    *,
    impl: Impl = "auto",
    capacity_factor: float = 1.06,
    block: int = 32,
    max_copies: int | None = None,
    store_fp8: tuple[str, ...] = (),
    _tiles: Tiles | None = None,
    _interpret=True,
) -> jax.Array:
    """Compute `y[t] = sum_k gates[t, k] * (silu(x[t] @ gate) * (x[t] @ up)) @ down` of expert `expert_ids[t, k]`.

    Exact for any routing, with static shapes: no copy of a token is dropped. Copies are sorted by expert. In plain JAX
    they are computed as one batched matmul up to a capacity, beyond it in blocks, so a skewed routing costs time, not
    accuracy; on a TPU the kernels of `routed_experts.mosaic` walk the sorted rows, whatever their distribution.
    Differentiable in x, w13, w2 and gates. Sums are float32 (float64 for float64 inputs, in plain JAX). Tokens without
    an expert are never read: they may hold anything.

    Under `jax.checkpoint` a policy finds what the backward pass needs under NAMES: `expert_input` (x), `expert_gate_up`
    (the pre-activation) and `expert_plan` (integers and sorted gates); SwiGLU's output and the rows of the down
    projection are never kept.

    Args:
        x: [T, D], tokens; float32 or bfloat16.
        w13: [E, D, 2, F], gate and up projections, in the dtype of x.
        w2: [E, F, D], down projections, in the dtype of x.
        expert_ids: int32 [T, K] in [0, E]; E means no expert (padding, remote) and contributes nothing.
        gates: float32 [T, K], the weight of each choice.
        impl: `xla`, `pallas` (D a multiple of 256, F of 128), `interpret`, or `auto`, on a TPU `pallas` where it can.
        capacity_factor: for `xla`, capacity of an expert over its mean count T * K / E; sets speed and memory, not the
            result.
        block: for `xla`, rows of one overflow block; sets speed, not the result.
        max_copies: for the kernels, an upper bound of the copies with an expert, which sizes their buffers; T * K where
            not given. If there are more, the output and the gradients of x and gates are NaN: none is dropped unseen.
        store_fp8: which of NAMES the backward pass finds in FP8 only. The output is the same; gradients are rounded,
            those of w13 by `expert_input`, all by `expert_gate_up`.

    Returns:
        y, [T, D] in the dtype of x.

    Raises:
        ValueError: if shapes or dtypes disagree or the kernels do not support them, `capacity_factor`, `block` or
            `max_copies` is not positive, or `store_fp8` has another name.
        TooManyCopiesError: a ValueError, for more copies at a time than the kernels can sort.
    """
    _check(x, w13, w2, expert_ids, gates, capacity_factor, block, max_copies)
    if not set(store_fp8) <= set(NAMES[:2]):
        raise ValueError(f"store_fp8 takes {NAMES[0]!r} and {NAMES[1]!r}, not {store_fp8}")
    impl = resolve(_supported(impl, x, w2))
    if impl != "xla":
        bound = min(max_copies or expert_ids.size, expert_ids.size)
        tiles = _tiles or default_tiles(bound, *w2.shape, x.dtype.itemsize)
        settings = Settings(bound, tiles, _interpret if impl == "interpret" else False, tuple(store_fp8))
        return experts_mosaic(x, w13, w2, expert_ids, gates, settings)
    slots = capacity(expert_ids.size, w13.shape[0], capacity_factor)
    return experts_xla(x, w13, w2, expert_ids, gates, slots, block, tuple(store_fp8))


def kept_rows(
    tokens: int,
    active: int,
    w2_shape: tuple[int, int, int],
    dtype: jnp.dtype,
    *,
    impl: Impl = "auto",
    capacity_factor: float = 1.06,
    max_copies: int | None = None,
) -> tuple[int, int]:
    """Count what `routed_experts` on [tokens, D] keeps for its backward pass: rows of [2, F], and bytes of the plan.

    Args:
        tokens: T.
        active: K.
        w2_shape: (E, F, D).
        dtype: of x.
        impl: as of `routed_experts`, and so are the others.
        capacity_factor: see there.
        max_copies: see there.

    Returns:
        (rows of `expert_gate_up`, bytes of `expert_plan`).
    """
    experts, _, width = w2_shape
    x, w2 = jax.ShapeDtypeStruct((tokens, width), dtype), jax.ShapeDtypeStruct(w2_shape, dtype)
    ids, gates = (jax.ShapeDtypeStruct((tokens, active), of) for of in (jnp.int32, jnp.float32))
    if resolve(_supported(impl, x, w2)) == "xla":
        slots = capacity(tokens * active, experts, capacity_factor)
        plan = jax.eval_shape(lambda ids: make_plan(ids, experts, slots, block=32), ids)
        rows = experts * slots
    else:
        bound = min(max_copies or tokens * active, tokens * active)
        tiles = default_tiles(bound, *w2_shape, x.dtype.itemsize)
        plan = jax.eval_shape(lambda *a: make_routing(*a, experts, bound, tiles.rows, tiles.tokens), ids, gates)
        rows = plan.gate_R1.size
    return rows, sum(part.size * part.dtype.itemsize for part in jax.tree.leaves(plan))


def _check(x, w13, w2, expert_ids, gates, capacity_factor, block, max_copies):
    experts, width, expert_width = w2.shape[0], x.shape[-1], w2.shape[1]
    if w13.shape != (experts, width, 2, expert_width) or w2.shape != (experts, expert_width, width) or x.ndim != 2:
        raise ValueError(f"expected x [T, D], w13 [E, D, 2, F], w2 [E, F, D]; got {x.shape}, {w13.shape}, {w2.shape}")
    if not x.dtype == w13.dtype == w2.dtype:
        raise ValueError(f"x, w13 and w2 must have one dtype; got {x.dtype}, {w13.dtype}, {w2.dtype}")
    if expert_ids.shape != gates.shape or expert_ids.ndim != 2 or expert_ids.shape[0] != x.shape[0]:
        raise ValueError(f"expected expert_ids and gates [T, K]; got {expert_ids.shape}, {gates.shape} for x {x.shape}")
    if capacity_factor <= 0 or block <= 0 or (max_copies is not None and max_copies <= 0):
        raise ValueError(
            f"capacity_factor, block and max_copies must be positive; got {capacity_factor}, {block}, {max_copies}"
        )


def _supported(impl, x, w2):
    """`auto` is plain JAX for what the kernels do not take; who asks for a kernel that cannot be is told."""
    width, f_size = x.shape[1], w2.shape[1]
    whole_lanes = width % 256 == 0 and f_size % 128 == 0
    if x.dtype in (jnp.float32, jnp.bfloat16) and (whole_lanes or (impl == "interpret" and width % 2 == 0)):
        return impl
    if impl in ("pallas", "interpret"):
        raise ValueError(
            f"the kernels take float32 or bfloat16, D a multiple of 256 (of 2 if interpreted) and F a multiple of 128; "
            f"got {x.dtype}, D {width}, F {f_size}"
        )
    return "xla" if impl == "auto" else impl
