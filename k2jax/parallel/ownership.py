"""Newton-Schulz over a mesh: every device orthogonalises whole matrices, each matrix on one device.

At rest the stacks of experts are spread by experts: their matrices are whole where they lie, and nothing travels. Other
matrices lie cut along one side. For each shape there is one all-to-all, in the products' dtype, after which a device
holds whole matrices, an equal number on each, and one back.
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

from k2jax.optim import Member, NewtonSchulz
from k2jax.parallel.layout import Layout, entries
from k2jax.params import ParamSpec
from pallas_kernels.newton_schulz import Coefficients, newton_schulz_stacks
from pallas_kernels.varying import vary_together


class _Cut(NamedTuple):
    """How a stack of matrices ``[*stack, n, m]`` lies on the mesh.

    Attributes:
        stack: mesh axes of the stack's axes, over which whole matrices are spread.
        side: which side is cut, -2 or -1; of no meaning without ``axes``.
        axes: mesh axes that cut it.
        tall: n > m, of whole matrices.
    """

    stack: tuple[tuple[str, ...], ...]
    side: int
    axes: tuple[str, ...]
    tall: bool

    @property
    def partition(self) -> PartitionSpec:
        sides = [self.axes if self.side == side else () for side in (-2, -1)]
        return PartitionSpec(*(axes or None for axes in (*self.stack, *sides)))

    @property
    def smaller_is_cut(self) -> bool:
        return (self.side == -1) == self.tall


def make_newton_schulz(layout: Layout) -> NewtonSchulz:
    """The iteration of ``optim.scale_by_muon`` for weights that lie at rest on a mesh."""
    rest = jax.tree.leaves(layout.rest, is_leaf=lambda x: isinstance(x, PartitionSpec))

    def newton_schulz(members: list[Member], coefficients: Coefficients, dtype: Any) -> list[Array]:
        cuts = [_cut(member.spec, rest[member.number], layout) for member in members]
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


def _cut(spec: ParamSpec, rest: PartitionSpec, layout: Layout) -> _Cut:
    """From the weight's partition to that of its matrices."""
    placed = dict(zip(spec.axes, entries(spec, rest), strict=True))
    stack = tuple(placed[axis] for axis in spec.stack)
    tall = spec.size_of(spec.inputs) > spec.size_of(spec.outputs)
    for side, names in ((-2, spec.inputs), (-1, spec.outputs)):
        # Slices of what lies around the pipeline are put together over stages: they are few.
        axes = tuple(axis for axis in placed[names[0]] if axis != "stage" and layout.mesh.shape[axis] > 1)
        if axes:
            return _Cut(stack, side, axes, tall)
    return _Cut(stack, -2, (), tall)


def _local(stacks: tuple[Array, ...], cuts: list[_Cut], iterate: Callable, dtype: Any) -> tuple[Array, ...]:
    """A device's part: whole matrices as they are, cut ones after an exchange."""
    kinds = [(cut.axes, cut.smaller_is_cut) if cut.axes else None for cut in cuts]
    results: dict[int, Array] = {}
    for kind in dict.fromkeys(kinds):
        numbers = [i for i, one in enumerate(kinds) if one == kind]
        if kind is None:
            found = iterate(list(vary_together(*(stacks[i] for i in numbers))))
        else:
            flat = [_wide(stacks[i], cuts[i]) for i in numbers]
            parts = _exchanged(flat, *kind, iterate, dtype)
            found = [_restored(part, stacks[i], cuts[i]) for i, part in zip(numbers, parts, strict=True)]
        results |= dict(zip(numbers, found, strict=True))
    return tuple(_as_equal(results[i], stacks[i]) for i in range(len(stacks)))


def _as_equal(result: Array, like: Array) -> Array:
    """Says of a result that devices hold alike, as they did its matrices, that they do: one of them speaks for all."""
    varying, wanted = (jax.typeof(x).manual_axis_type.varying for x in (result, like))
    axes = tuple(varying - wanted)
    if not axes:
        return result
    first = sum(lax.axis_index(axis) for axis in axes) == 0
    return lax.psum(jnp.where(first, result, 0.0), axes)


def _exchanged(
    parts: list[Array], axes: tuple[str, ...], smaller_is_cut: bool, iterate: Callable, dtype: Any
) -> list[Array]:
    """Parts ``[k, small side, large side]``, one side cut over ``axes``: to whole matrices, and back."""
    ranks = math.prod(lax.axis_size(axis) for axis in axes)
    side = 1 if smaller_is_cut else 2
    x = jnp.concatenate(parts).astype(dtype)
    x = jnp.pad(x, ((0, -len(x) % ranks), (0, 0), (0, 0)))  # matrices of zeros stay zero
    # XLA:CPU otherwise folds the transpositions into some of the exchange's operands, and refuses to mix their layouts.
    x = lax.optimization_barrier(x)
    owned = lax.all_to_all(x, axes, split_axis=0, concat_axis=side, tiled=True)
    (owned,) = iterate([owned])
    owned = lax.optimization_barrier(owned.astype(dtype))
    back = lax.all_to_all(owned, axes, split_axis=side, concat_axis=0, tiled=True)
    cuts = list(itertools.accumulate(len(part) for part in parts))
    return jnp.split(back.astype(jnp.float32), cuts)[:-1]


def _wide(stack: Array, cut: _Cut) -> Array:
    flat = stack.reshape(-1, *stack.shape[-2:])
    return flat.swapaxes(1, 2) if cut.tall else flat


def _restored(part: Array, like: Array, cut: _Cut) -> Array:
    return (part.swapaxes(1, 2) if cut.tall else part).reshape(like.shape)
