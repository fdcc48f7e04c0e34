"""Dropless routed experts: each token through its K chosen SwiGLU experts, weighted by its gates."""

import jax

from pallas_kernels.routed_experts.plan import capacity, expert_counts
from pallas_kernels.routed_experts.xla import experts_xla

__all__ = ["expert_counts", "routed_experts"]


def routed_experts(
    x: jax.Array,
    w13: jax.Array,
    w2: jax.Array,
    expert_ids: jax.Array,
    gates: jax.Array,
    *,
    capacity_factor: float = 1.06,
    block: int = 32,
) -> jax.Array:
    """Compute `y[t] = sum_k gates[t, k] * (silu(x[t] @ gate) * (x[t] @ up)) @ down` of expert `expert_ids[t, k]`.

    Exact for any routing, with static shapes: no copy of a token is dropped. Copies are sorted by expert; up to a
    capacity they are computed as one batched matmul, beyond it in blocks, so a skewed routing costs time, not accuracy.
    Differentiable in x, w13, w2 and gates. Sums are float32 (float64 for float64 inputs).

    Args:
        x: [T, D], tokens; float32 or bfloat16.
        w13: [E, D, 2, F], gate and up projections, in the dtype of x.
        w2: [E, F, D], down projections, in the dtype of x.
        expert_ids: int32 [T, K] in [0, E]; E means no expert (padding, remote) and contributes nothing.
        gates: float32 [T, K], the weight of each choice.
        capacity_factor: capacity of an expert over its mean count T * K / E; sets speed and memory, not the result.
        block: rows of one overflow block; sets speed, not the result.

    Returns:
        y, [T, D] in the dtype of x.

    Raises:
        ValueError: if shapes or dtypes disagree, or `capacity_factor` or `block` is not positive.
    """
    _check(x, w13, w2, expert_ids, gates, capacity_factor, block)
    slots = capacity(expert_ids.size, w13.shape[0], capacity_factor)
    return experts_xla(x, w13, w2, expert_ids, gates, slots, block)


def _check(x, w13, w2, expert_ids, gates, capacity_factor, block):
    experts, width, expert_width = w2.shape[0], x.shape[-1], w2.shape[1]
    if w13.shape != (experts, width, 2, expert_width) or w2.shape != (experts, expert_width, width) or x.ndim != 2:
        raise ValueError(f"expected x [T, D], w13 [E, D, 2, F], w2 [E, F, D]; got {x.shape}, {w13.shape}, {w2.shape}")
    if not x.dtype == w13.dtype == w2.dtype:
        raise ValueError(f"x, w13 and w2 must have one dtype; got {x.dtype}, {w13.dtype}, {w2.dtype}")
    if expert_ids.shape != gates.shape or expert_ids.ndim != 2 or expert_ids.shape[0] != x.shape[0]:
        raise ValueError(f"expected expert_ids and gates [T, K]; got {expert_ids.shape}, {gates.shape} for x {x.shape}")
    if capacity_factor <= 0 or block <= 0:
        raise ValueError(f"capacity_factor and block must be positive; got {capacity_factor}, {block}")
