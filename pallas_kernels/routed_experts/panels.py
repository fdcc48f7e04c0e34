"""Routed experts for few tokens on a CPU: weights are cut into narrow panels, and few copies read only their experts.

A step of decoding multiplies each expert's weights by a few rows, and takes as long as reading the weights does. Of a
matrix of 256 columns XLA:CPU reads one block of columns after the other, at a third of the memory's speed. A panel of
64 columns that lies by itself is read from its start to its end, at full speed; for many rows it makes no difference.
"""

from collections.abc import Sequence
import math

import jax
import jax.numpy as jnp

from pallas_kernels.ops import take
from pallas_kernels.routed_experts import mlp, overflow
from pallas_kernels.routed_experts.plan import capacity, combine, plan_capacity, tokens_of

WIDTH = 64  # columns
MAX_PANELS = 8
"""Most panels of a weight: a wider one stays whole, as dozens of small products would cost more than they save."""
_DIVIDED = 6 << 20
"""Multiplications for each expert from which XLA:CPU divides a batched product among the cores, which saves more than
it costs to put the panels together."""
_READ_COPIES = 3
"""A weight that is gathered for one copy is read, written and read again, where the bulk reads it once."""

Panels = tuple[jax.Array, ...]


def split(weight: jax.Array) -> Panels:
    """Cuts ``[E, M, ...]`` into panels ``[E, M, n]`` of the merged last axes."""
    merged = weight.reshape(*weight.shape[:2], -1)
    width = merged.shape[-1]
    if width > WIDTH * MAX_PANELS:
        return (merged,)
    return tuple(merged[..., first : first + WIDTH] for first in range(0, width, WIDTH))


def join(panels: Panels, shape: Sequence[int]) -> jax.Array:
    """The weight that was split, of the given shape."""
    return jnp.concatenate(panels, -1).reshape(shape)


def experts_of_panels(
    x: jax.Array, w13: Panels, w2: Panels, expert_ids: jax.Array, gates: jax.Array, *, capacity_factor: float, block=32
) -> jax.Array:
    """``routed_experts`` in plain JAX with weights in panels; not differentiable.

    Args:
        x: ``[T, D]``.
        w13: panels of ``[E, D, 2, F]``.
        w2: panels of ``[E, F, D]``.
        expert_ids: int32 ``[T, K]`` in [0, E]; E means no expert.
        gates: float32 ``[T, K]``.
        capacity_factor: capacity of an expert over its mean count.
        block: rows of an overflow block.
    """
    experts = len(w2[0])
    if expert_ids.size * _READ_COPIES <= experts:
        return _of_few(x, w13, w2, expert_ids, gates)
    plan = plan_capacity(expert_ids, experts, capacity(expert_ids.size, experts, capacity_factor), block)
    xs_ECD = take(x, tokens_of(plan.copy_of_slot_EC, gates.shape[1]))
    ys_ECD = _mlp(xs_ECD, w13, w2)
    y_TD = combine(ys_ECD.reshape(-1, ys_ECD.shape[-1]), plan.place_of_copy_TK, gates)

    def apply_expert(expert, xs_1BD):
        return _mlp(xs_1BD, *overflow.weights_of((w13, w2), expert))

    return overflow.add_forward(y_TD, x, gates, plan, block, apply_expert).astype(x.dtype)


def _of_few(x, w13, w2, ids_TK, gates_TK):
    """Each copy with a copy of its expert's weights."""
    ids_N = ids_TK.reshape(-1)
    rows_N1D = jnp.repeat(x, ids_TK.shape[1], axis=0)[:, None]
    own = lambda panels: tuple(panel.at[ids_N].get(mode="clip") for panel in panels)  # noqa: E731
    y_TKD = _mlp(rows_N1D, own(w13), own(w2)).reshape(*ids_TK.shape, -1)
    real_TK = ids_TK < len(w2[0])
    gated = jnp.where(real_TK[..., None], y_TKD * gates_TK[..., None], 0)
    return gated.sum(1).astype(x.dtype)


def _mlp(xs_ECD, w13, w2):
    return _product(mlp.activation(_product(xs_ECD, w13).astype(xs_ECD.dtype)), w2)


def _product(rows_ECM, panels):
    dtype = mlp.accumulator_dtype(rows_ECM.dtype)
    if math.prod(rows_ECM.shape[1:]) * sum(panel.shape[-1] for panel in panels) >= _DIVIDED:
        panels = (jnp.concatenate(panels, -1),)
    parts = [jnp.einsum("ecm,emn->ecn", rows_ECM, panel, preferred_element_type=dtype) for panel in panels]
    return jnp.concatenate(parts, -1)
