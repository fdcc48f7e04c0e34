"""Public functions of dropless routed experts: checks, and the choice of an implementation."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.implementation import Impl, resolve
from pallas_kernels.routed_experts.mosaic import ExpertSettings, ExpertTiles, default_tiles, experts_mosaic
from pallas_kernels.routed_experts.plan import CAPACITY_FACTOR, capacity, plan_capacity
from pallas_kernels.routed_experts.routing import plan_routing
from pallas_kernels.routed_experts.xla import CapacitySettings, experts_xla
from pallas_kernels.vma import full

D_MULTIPLE, F_MULTIPLE = 256, 128
"""The compiled kernels take widths D and F that are multiples of these: whole lanes of each half of D, and of F."""

NAMES = ("expert_input", "expert_gate_up", "expert_plan")
"""Names, for policies of ``jax.checkpoint``, of the values that the forward pass keeps for the backward pass: x, the
pre-activation, and integers with sorted gates. The output of SwiGLU and rows of the down projection are never kept."""


def routed_experts(
    x: jax.Array,
    w13: jax.Array,
    w2: jax.Array,
    expert_ids: jax.Array,
    gates: jax.Array,
    *,
    impl: Impl = "auto",
    capacity_factor: float = CAPACITY_FACTOR,
    block: int = 32,
    max_copies: int | None = None,
    store_fp8: tuple[str, ...] = (),
    _tiles: ExpertTiles | None = None,
    _interpret=True,
) -> jax.Array:
    """Computes ``y[t] = sum_k gates[t, k] * (silu(x[t] @ gate) * (x[t] @ up)) @ down`` of expert ``expert_ids[t, k]``.

    Exact for any routing, with static shapes: no copy of a token is dropped. Copies are sorted by expert. Plain JAX
    computes them as one batched matmul up to a capacity and in blocks beyond it, so that a skewed routing costs time,
    not accuracy. On a TPU the kernels of ``routed_experts.mosaic`` walk the sorted rows, whatever their distribution.
    Differentiable in x, w13, w2 and gates. Sums are float32 (in plain JAX float64 for float64 inputs). Tokens without
    an expert are never read and may hold arbitrary values. What the backward pass needs has NAMES.

    Args:
        x: ``[T, D]``, tokens; float32 or bfloat16.
        w13: ``[E, D, 2, F]``, gate and up projections, in the dtype of x.
        w2: ``[E, F, D]``, down projections, in the dtype of x.
        expert_ids: int32 ``[T, K]`` in [0, E]; E means no expert (padding, another rank's) and contributes nothing.
        gates: float32 ``[T, K]``, weight of each choice.
        impl: ``xla``, ``pallas`` (D a multiple of D_MULTIPLE, F of F_MULTIPLE), ``interpret``, or ``auto``, which on a
            TPU is ``pallas`` for the shapes that it supports.
        capacity_factor: for ``xla``, capacity of an expert over its mean count T * K / E; changes speed and memory, not
            the result.
        block: for ``xla``, rows of one overflow block; changes speed, not the result.
        max_copies: for the kernels, upper bound of the number of copies with an expert, which sizes their buffers; by
            default T * K. If there are more, the output and the gradients of x and gates are NaN: none is lost.
        store_fp8: which of NAMES are kept for the backward pass in FP8 only. The output does not change; gradients are
            rounded, those of w13 by ``expert_input``, all by ``expert_gate_up``.

    Returns:
        y, ``[T, D]`` in the dtype of x.

    Raises:
        ValueError: if shapes or dtypes disagree or the kernels do not support them, ``capacity_factor``, ``block`` or
            ``max_copies`` is not positive, or ``store_fp8`` has another name.
        TooManyCopiesError: a ValueError, if there are more copies than the kernels can sort at a time.
    """
    _check_arrays(x, w13, w2, expert_ids, gates)
    _check_settings(capacity_factor, block, max_copies, store_fp8)
    impl = resolve(_supported(impl, x, w2))
    if 0 in (expert_ids.size, w13.size):
        return full(x.shape, 0, x.dtype, x, w13, w2, expert_ids, gates)
    if impl != "xla":
        bound = min(max_copies or expert_ids.size, expert_ids.size)
        tiles = _tiles or default_tiles(bound, *w2.shape, x.dtype.itemsize)
        settings = ExpertSettings(bound, tiles, _interpret if impl == "interpret" else False, tuple(store_fp8))
        return experts_mosaic(x, w13, w2, expert_ids, gates, settings)
    slots = capacity(expert_ids.size, w13.shape[0], capacity_factor)
    return experts_xla(x, w13, w2, expert_ids, gates, CapacitySettings(slots, block, tuple(store_fp8)))


def _check_settings(capacity_factor: float, block: int, max_copies: int | None, store_fp8: tuple[str, ...]) -> None:
    if capacity_factor <= 0 or block <= 0 or (max_copies is not None and max_copies <= 0):
        raise ValueError(
            f"capacity_factor, block and max_copies must be positive; got {capacity_factor}, {block}, {max_copies}"
        )
    if not set(store_fp8) <= set(NAMES[:2]):
        raise ValueError(f"store_fp8 takes {NAMES[0]!r} and {NAMES[1]!r}, not {store_fp8}")


def kept_rows(
    tokens: int,
    active: int,
    w2_shape: tuple[int, int, int],
    dtype: jnp.dtype,
    *,
    impl: Impl = "auto",
    capacity_factor: float = CAPACITY_FACTOR,
    max_copies: int | None = None,
) -> tuple[int, int]:
    """Counts what ``routed_experts`` on ``[T, D]`` keeps for its backward pass.

    Args:
        tokens: T.
        active: K.
        w2_shape: (E, F, D).
        dtype: dtype of x.
        impl: as in ``routed_experts``.
        capacity_factor: as in ``routed_experts``.
        max_copies: as in ``routed_experts``.

    Returns:
        (rows ``[2, F]`` of ``expert_gate_up``, bytes of ``expert_plan``)
    """
    if 0 in (tokens, active, *w2_shape):
        return 0, 0
    experts, _, width = w2_shape
    x, w2 = jax.ShapeDtypeStruct((tokens, width), dtype), jax.ShapeDtypeStruct(w2_shape, dtype)
    ids, gates = (jax.ShapeDtypeStruct((tokens, active), dtype) for dtype in (jnp.int32, jnp.float32))
    if resolve(_supported(impl, x, w2)) == "xla":
        slots = capacity(tokens * active, experts, capacity_factor)
        plan = jax.eval_shape(lambda ids: plan_capacity(ids, experts, slots, block=32), ids)
        rows = experts * slots
    else:
        bound = min(max_copies or tokens * active, tokens * active)
        tiles = default_tiles(bound, *w2_shape, x.dtype.itemsize)
        plan = jax.eval_shape(lambda *a: plan_routing(*a, experts, bound, tiles.rows, tiles.tokens), ids, gates)
        rows = plan.gate_R1.size
    return rows, sum(array.size * array.dtype.itemsize for array in jax.tree.leaves(plan))


def _check_arrays(x, w13, w2, expert_ids, gates):
    experts, width, expert_width = w2.shape[0], x.shape[-1], w2.shape[1]
    if w13.shape != (experts, width, 2, expert_width) or w2.shape != (experts, expert_width, width) or x.ndim != 2:
        raise ValueError(f"expected x [T, D], w13 [E, D, 2, F], w2 [E, F, D]; got {x.shape}, {w13.shape}, {w2.shape}")
    if not x.dtype == w13.dtype == w2.dtype:
        raise ValueError(f"x, w13 and w2 must have one dtype; got {x.dtype}, {w13.dtype}, {w2.dtype}")
    if expert_ids.shape != gates.shape or expert_ids.ndim != 2 or expert_ids.shape[0] != x.shape[0]:
        raise ValueError(f"expected expert_ids and gates [T, K]; got {expert_ids.shape}, {gates.shape} for x {x.shape}")


def _supported(impl, x, w2):
    """Replaces ``auto`` by ``xla`` for shapes that the kernels do not support; an explicit choice of a kernel fails."""
    width, f_size = x.shape[1], w2.shape[1]
    whole_lanes = width % D_MULTIPLE == 0 and f_size % F_MULTIPLE == 0
    if x.dtype in (jnp.float32, jnp.bfloat16) and (whole_lanes or (impl == "interpret" and width % 2 == 0)):
        return impl
    if impl in ("pallas", "interpret"):
        raise ValueError(
            f"the kernels take float32 or bfloat16, D a multiple of {D_MULTIPLE} (of 2 if interpreted) and F a "
            f"multiple of {F_MULTIPLE}; got {x.dtype}, D {width}, F {f_size}"
        )
    return "xla" if impl == "auto" else impl
