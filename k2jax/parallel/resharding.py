"""Weights and optimizer state between their logical form, which checkpoints hold, and the form stored on a mesh.

A pipeline stores a layer of a stack at ``[round, stage, layer]``. In the logical form layers are one axis in order, and
``stage`` shards another axis instead. One all-to-all over ``stage`` leads from one form to the other. Empty slots exist
in the stored form alone.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import math
from typing import Any

import jax
from jax import Array, lax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import optax

from k2jax.parallel.layout import Layout, entries
from k2jax.params import ParamSpec, abstract, is_spec, map_specs

_LAYER_AXES = 3  # rounds, stages, layers


def logical_partition(layout: Layout) -> Any:
    """PartitionSpec of every weight in its logical form."""
    return map_specs(lambda spec, storage: _logical(spec, storage, layout)[0], layout.specs, layout.storage)


def to_logical(layout: Layout, params: Any) -> Any:
    """Converts the stored form to ``[layers, ...]``; a no-op without stages. Call it under ``jit``."""
    return _convert(layout, params, _gather_layers)


def from_logical(layout: Layout, params: Any) -> Any:
    """Converts ``[layers, ...]`` to the stored form; a no-op without stages. Call it under ``jit``."""
    return _convert(layout, params, _scatter_layers)


def waypoints(source: NamedSharding, target: NamedSharding) -> list[NamedSharding]:
    """Shardings on the way from one mesh to another with the same order of devices, where there is need of any.

    Where the target cuts a dimension among more devices than the source does, XLA would gather the whole array on every
    device. From one of these to the next, and from the last to the target, it finds an all-to-all that cuts that
    dimension further, a permutation of its parts, and a gathering of the other dimensions.

    Args:
        source: of an array.
        target: cuts one dimension, along the last axis of its mesh.
    """
    cut = next((at for at, axes in enumerate(target.spec) if axes is not None), None)
    split = cut is not None and _trailing(source.mesh, target.mesh.devices.shape[-1])
    if not split:
        return []
    mesh, inner, parts = split
    spec = [(axes,) if isinstance(axes, str) else axes or () for axes in source.spec]
    placed = [[part for axis in axes for part in parts.get(axis, [axis])] for axes in spec]
    missing = [axis for axis in inner if axis not in placed[cut]]
    if not missing or not set(placed[cut]) <= set(inner):
        return []
    moved = [[axis for axis in axes if axis not in missing] for axes in placed]
    moved[cut] += missing
    ordered = [inner if at == cut else axes for at, axes in enumerate(moved)]
    steps = (PartitionSpec(*(tuple(axes) or None for axes in step)) for step in (placed, moved, ordered))
    return [NamedSharding(mesh, step) for step in steps]


def _trailing(mesh: Mesh, count: int) -> tuple[Mesh, list[str], dict[str, list[str]]] | None:
    """The mesh with an axis split so that its last axes are ``count`` devices; these, and the parts of the split axis.

    None where no split of an axis does that.
    """
    inner: list[str] = []
    for at, (name, size) in reversed(list(enumerate(mesh.shape.items()))):
        if count == 1:
            break
        if count % size and size % count:
            return None
        if count < size:
            outer, shape = f"{name} outer", list(mesh.devices.shape)
            shape[at : at + 1] = [size // count, count]
            names = [*mesh.axis_names[:at], outer, name, *mesh.axis_names[at + 1 :]]
            grid = Mesh(mesh.devices.reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))
            return grid, [name, *inner], {name: [outer, name]}
        inner, count = [name, *inner], count // size
    return mesh, inner, {}


def map_state(
    optimizer: optax.GradientTransformation, function: Callable[[Any, int], Any], state: Any, layout: Layout
) -> Any:
    """``function(leaf, number of the weight)`` on those leaves of an optimizer's state that belong to a weight."""
    count = len(jax.tree.leaves(layout.specs, is_leaf=is_spec))
    numbers = jax.tree.unflatten(jax.tree.structure(layout.specs, is_leaf=is_spec), range(count))

    def visit(leaf: Any, number: int) -> Any:
        return leaf if _is_masked(leaf) else function(leaf, number)

    return optax.tree_utils.tree_map_params(optimizer, visit, state, numbers, is_leaf=_is_masked)


def _is_masked(x: Any) -> bool:
    return isinstance(x, optax.MaskedNode)


def optimizer_shardings(optimizer: optax.GradientTransformation, state: Any, layout: Layout, partition: Any) -> Any:
    """NamedShardings of an optimizer's state: weights' parts as ``partition`` says, counters everywhere."""
    listed = jax.tree.leaves(layout.shardings(partition))
    everywhere = NamedSharding(layout.mesh, PartitionSpec())
    placed = map_state(optimizer, lambda leaf, number: listed[number], state, layout)
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, NamedSharding) else everywhere, placed)


def convert_state(
    optimizer: optax.GradientTransformation, state: Any, layout: Layout, convert: Callable[[Layout, Any], Any]
) -> Any:
    """``to_logical`` or ``from_logical`` on an optimizer's state."""
    specs, treedef = jax.tree.flatten(layout.specs, is_leaf=is_spec)

    def convert_leaf(leaf: Array, number: int) -> Array:
        blank = [None] * len(specs)
        blank[number] = leaf
        return treedef.flatten_up_to(convert(layout, treedef.unflatten(blank)))[number]

    return map_state(optimizer, convert_leaf, state, layout)


class CheckpointLayout:
    """The form of parameters and optimizer state in checkpoints, and the conversions to and from it.

    Attributes:
        abstract: (parameters, optimizer state) of ShapeDtypeStructs with shardings, for restoring.
    """

    def __init__(self, optimizer: optax.GradientTransformation, layout: Layout):
        partition = logical_partition(layout)
        state = jax.eval_shape(optimizer.init, abstract(layout.logical))
        self._saved = (layout.shardings(partition), optimizer_shardings(optimizer, state, layout, partition))
        self._stored = (layout.shardings(layout.storage), optimizer_shardings(optimizer, state, layout, layout.storage))
        place = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
        self.abstract = jax.tree.map(place, (abstract(layout.logical), state), self._saved)

        def convert(way: Callable[[Layout, Any], Any], params: Any, opt_state: Any) -> tuple[Any, Any]:
            return way(layout, params), convert_state(optimizer, opt_state, layout, way)

        self._to_logical = jax.jit(functools.partial(convert, to_logical), out_shardings=self._saved)
        self._from_logical = jax.jit(functools.partial(convert, from_logical), out_shardings=self._stored)
        self._layout, self._same = layout, layout.stages == 1

    def logical_params(self, params: Any) -> Any:
        """Parameters alone (or gradients), in their logical form."""
        return params if self._same else jax.jit(functools.partial(to_logical, self._layout))(params)

    def save(self, params: Any, opt_state: Any) -> tuple[Any, Any]:
        """Converts the stored form to what a checkpoint holds."""
        return (params, opt_state) if self._same else self._to_logical(params, opt_state)

    def load(self, params: Any, opt_state: Any) -> tuple[Any, Any]:
        """Converts what was restored to the stored form."""
        return (params, opt_state) if self._same else self._from_logical(params, opt_state)


def _convert(layout: Layout, params: Any, convert: Callable) -> Any:
    def convert_leaf(spec: ParamSpec, storage: PartitionSpec, leaf: Array | None) -> Array | None:
        if leaf is None or len(spec.layer_axes) == 1 or not spec.layer_axes:
            return leaf
        logical, cut = _logical(spec, storage, layout)
        in_spec, out_spec = (storage, logical) if convert is _gather_layers else (logical, storage)
        return jax.shard_map(lambda x: convert(x, spec, cut), mesh=layout.mesh, in_specs=in_spec, out_specs=out_spec)(
            leaf
        )

    return jax.tree.map(convert_leaf, layout.specs, layout.storage, params, is_leaf=lambda x: is_spec(x) or x is None)


def _logical(spec: ParamSpec, storage: PartitionSpec, layout: Layout) -> tuple[PartitionSpec, int | None]:
    """Partition of the logical form, and which of its axes ``stage`` cuts there (None where none divides)."""
    if len(spec.layer_axes) < _LAYER_AXES:
        return storage, None
    placed = [(), *entries(spec, storage)[_LAYER_AXES:]]
    shape = spec.shape[_LAYER_AXES - 1 :]
    for at in sorted(range(1, len(shape)), key=lambda at: bool(placed[at])):
        shards = math.prod(layout.mesh.shape[axis] for axis in (*placed[at], "stage"))
        if shape[at] % shards == 0:
            placed[at] = (*placed[at], "stage")
            return PartitionSpec(*(axes or None for axes in placed)), at
    return PartitionSpec(*(axes or None for axes in placed)), None


def _gather_layers(x: Array, spec: ParamSpec, cut: int | None) -> Array:
    if cut is None:
        mine = jnp.arange(spec.shape[1]).reshape(1, -1, *[1] * (x.ndim - 2)) == lax.axis_index("stage")
        x = lax.psum(jnp.where(mine, x, 0), "stage")
    else:
        x = lax.all_to_all(x, "stage", split_axis=cut + _LAYER_AXES - 1, concat_axis=1, tiled=True)
    flat = x.reshape(-1, *x.shape[_LAYER_AXES:])
    return flat[: len(flat) - spec.empty]


def _scatter_layers(x: Array, spec: ParamSpec, cut: int | None) -> Array:
    padded = jnp.pad(x, [(0, spec.empty)] + [(0, 0)] * (x.ndim - 1))
    staged = padded.reshape(*spec.shape[:_LAYER_AXES], *x.shape[1:])
    if cut is None:
        return lax.dynamic_slice_in_dim(staged, lax.axis_index("stage"), 1, axis=1)
    return lax.all_to_all(staged, "stage", split_axis=1, concat_axis=cut + _LAYER_AXES - 1, tiled=True)
