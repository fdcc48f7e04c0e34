"""Newton-Schulz over a mesh: every device orthogonalises whole matrices, each matrix on one device.

Stored stacks of experts are sharded by experts: their matrices are whole on a device, and nothing is sent. Other
matrices are sharded along one side, or along both where heads or hidden width are sharded too. For each shape of matrix
there is one all-to-all for each sharded side, in the products' dtype, after which a device holds whole matrices, an
equal number on each, and one all-to-all back.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from k2jax.optim import MatrixStack, NewtonSchulz
from k2jax.parallel.layout import Layout, entries
from k2jax.params import ParamSpec
from pallas_kernels.newton_schulz import Coefficients, newton_schulz_stacks
from pallas_kernels.vma import vary_together


class _Cut(NamedTuple):
    """How a stack of matrices ``[*stack, n, m]`` lies on the mesh.

    Attributes:
        stack: mesh axes of the stack's axes, that shard whole matrices.
        sides: mesh axes that cut n and m.
        tall: n > m, of whole matrices; of squares those that are cut along m alone, so that all are exchanged alike.
    """

    stack: tuple[tuple[str, ...], ...]
    sides: tuple[tuple[str, ...], tuple[str, ...]]
    tall: bool

    @property
    def partition(self) -> PartitionSpec:
        return PartitionSpec(*(axes or None for axes in (*self.stack, *self.sides)))

    @property
    def exchanges(self) -> tuple[tuple[tuple[str, ...], int], ...]:
        """(mesh axes, side 1 or 2 of a ``_wide`` stack) of each side that is cut."""
        wide = self.sides[::-1] if self.tall else self.sides
        return tuple((axes, side) for side, axes in enumerate(wide, 1) if axes)


def make_newton_schulz(layout: Layout) -> NewtonSchulz:
    """The iteration of ``optim.scale_by_muon`` for weights that are stored on a mesh."""
    storage = jax.tree.leaves(layout.storage, is_leaf=lambda x: isinstance(x, PartitionSpec))

    def newton_schulz(members: list[MatrixStack], coefficients: Coefficients, dtype: Any) -> list[Array]:
        cuts = [_cut(member.spec, storage[member.leaf_index], layout) for member in members]
        dtype = dtype or (jnp.float32 if layout.platform == "cpu" else jnp.bfloat16)
        iterate = functools.partial(newton_schulz_stacks, coefficients=coefficients, dtype=dtype)
        partitions = tuple(cut.partition for cut in cuts)
        mapped = jax.shard_map(
            lambda *stacks: _local(stacks, cuts, iterate, dtype),
            mesh=layout.mesh,
            in_specs=partitions,
            out_specs=partitions,
        )
        return list(mapped(*(member.matrices for member in members)))

    return newton_schulz


def _cut(spec: ParamSpec, storage: PartitionSpec, layout: Layout) -> _Cut:
    """The way from the weight's partition to that of its matrices."""
    placed = dict(zip(spec.axes, entries(spec, storage), strict=True))
    stack = tuple(placed[axis] for axis in spec.stack)
    # Slices of what lies around the pipeline are put together over stages: they are few.
    rows, columns = (
        tuple(axis for axis in placed[names[0]] if axis != "stage" and layout.mesh.shape[axis] > 1)
        for names in (spec.inputs, spec.outputs)
    )
    n, m = spec.size_of(spec.inputs), spec.size_of(spec.outputs)
    tall = n > m or (n == m and bool(columns) and not rows)
    return _Cut(stack, (rows, columns), tall)


def _local(stacks: tuple[Array, ...], cuts: list[_Cut], iterate: Callable, dtype: Any) -> tuple[Array, ...]:
    """A device's part: whole matrices as they are, cut ones after an exchange."""
    kinds = [cut.exchanges for cut in cuts]
    results: dict[int, Array] = {}
    for kind in dict.fromkeys(kinds):
        numbers = [i for i, other in enumerate(kinds) if other == kind]
        if not kind:
            results_of_kind = iterate(list(vary_together(*(stacks[i] for i in numbers))))
        else:
            flat = [_wide(stacks[i], cuts[i]) for i in numbers]
            parts = _exchanged(flat, kind, iterate, dtype)
            results_of_kind = [_restored(part, stacks[i], cuts[i]) for i, part in zip(numbers, parts, strict=True)]
        results |= dict(zip(numbers, results_of_kind, strict=True))
    return tuple(_as_equal(results[i], stacks[i]) for i in range(len(stacks)))


def _as_equal(result: Array, like: Array) -> Array:
    """Marks a result that devices hold equal as equal, as the type of its input says."""
    varying, expected = (jax.typeof(x).manual_axis_type.varying for x in (result, like))
    axes = tuple(varying - expected)
    if not axes:
        return result
    first = sum(lax.axis_index(axis) for axis in axes) == 0
    return lax.psum(jnp.where(first, result, 0.0), axes)


def _exchanged(
    parts: list[Array], exchanges: tuple[tuple[tuple[str, ...], int], ...], iterate: Callable, dtype: Any
) -> list[Array]:
    """Parts ``[k, small side, large side]``, cut as ``_Cut.exchanges`` says: to whole matrices, and back."""
    ranks = math.prod(lax.axis_size(axis) for axes, _ in exchanges for axis in axes)
    x = jnp.concatenate(parts).astype(dtype)
    x = jnp.pad(x, ((0, -len(x) % ranks), (0, 0), (0, 0)))  # matrices of zeros stay zero
    for axes, side in exchanges:
        # XLA:CPU otherwise folds transpositions into some of the exchange's operands, and refuses to mix their layouts.
        x = lax.optimization_barrier(x)
        x = lax.all_to_all(x, axes, split_axis=0, concat_axis=side, tiled=True)
    (x,) = iterate([x])
    x = x.astype(dtype)
    for axes, side in reversed(exchanges):
        x = lax.optimization_barrier(x)
        x = lax.all_to_all(x, axes, split_axis=side, concat_axis=0, tiled=True)
    cuts = list(itertools.accumulate(len(part) for part in parts))
    return jnp.split(x.astype(jnp.float32), cuts)[:-1]


def _wide(stack: Array, cut: _Cut) -> Array:
    flat = stack.reshape(-1, *stack.shape[-2:])
    return flat.swapaxes(1, 2) if cut.tall else flat


def _restored(part: Array, like: Array, cut: _Cut) -> Array:
    return (part.swapaxes(1, 2) if cut.tall else part).reshape(like.shape)
