"""The engine's copy of the weights, filled and replaced one weight or one layer at a time.

The arrays are the engine's own: none shares memory with an array of a caller, who may donate, delete or overwrite what
it gave as soon as the call returns. Neither the start nor an update needs two whole copies: each array that comes is
cast, put where the engine reads it, and takes the place of the old one before the next array is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import functools
from typing import Any

import jax
from jax import Array
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
import numpy as np

from k2jax.config.build import nearest
from k2jax.config.schema import ModelConfig
from k2jax.errors import UserError
from k2jax.inference.checksum import combine, digest, replica_sums, seed_of
from k2jax.inference.mesh import default_sharding, fetch, spread
from k2jax.model import cast_params, model_specs
from k2jax.model.vision import vision_specs
from k2jax.params import ParamSpec, Specs, is_spec, map_specs, named_specs
from k2jax.sharding import param_shardings
from pallas_kernels.implementation import resolve
from pallas_kernels.routed_experts import panels

Name = str | tuple[str, int]
"""``moe/attention/q_b`` is a whole weight, stacked over its layers; ``("moe/attention/q_b", 3)`` is row 3 of it."""

VISION = "vision"
"""Group of the tower and the projector, whole on every device. Its layers stay stacked, and are a part of the group."""

IN_PANELS = ("moe/experts/w13", "moe/experts/w2")
"""Weights that are cut into panels on a CPU, where a step of decoding takes as long as reading them does."""

Leaves = Iterable[tuple[Name, Any]] | Mapping[Name, Any]


def named_leaves(params: dict) -> list[tuple[str, Any]]:
    """The weights of a parameter tree by name, as ``Engine.update_params`` takes them."""
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    return [("/".join(str(entry.key) for entry in path), leaf) for path, leaf in paths]


class EngineWeights:
    """The weights that an engine computes with, in the dtype of the embedding.

    Args:
        params: parameter tree of ``model_specs(model)`` or ``multimodal_specs(model)``, of NumPy or JAX arrays, which
            are copied. A tree of ShapeDtypeStructs says dtypes alone: weights are incomplete until the first update.
        model: the architecture.
        mesh: of ``inference.mesh.make_engine_mesh``; None is the default device.
        stacked: whether layers stay stacked. By default they do not on a CPU: XLA would copy a layer out of its stack
            each time the scan comes to it, which is half of a small decoding step.
        donate: deletes each JAX array of ``params`` once it is copied, so that there is one copy in the end.

    Attributes:
        params: the tree that programs read. Its arrays change with ``update``. On one CPU device each of ``IN_PANELS``
            is a tuple of arrays, see ``routed_experts.panels``.
        dtype: of the embedding, in which programs compute.
        complete: whether all weights belong to one update; False before the first and after one that broke off.
        has_vision: whether the weights of a tower are among them.

    Raises:
        UserError: experts that do not divide over the mesh, or weights that are not the model's.
    """

    def __init__(
        self, params: dict, model: ModelConfig, mesh: Mesh | None, stacked: bool | None = None, donate: bool = False
    ):
        specs, self.has_vision = model_specs(model), VISION in params
        shardings = param_shardings(specs, mesh) if mesh else {}
        if self.has_vision:
            specs = {**specs, VISION: vision_specs(model)}
            shardings |= {VISION: param_shardings(specs[VISION], mesh, {})} if mesh else {}
        default = default_sharding()
        self._specs: dict[str, ParamSpec] = dict(named_specs(specs))
        self._shardings: dict[str, Sharding] = dict(named_leaves(shardings or map_specs(lambda spec: default, specs)))
        named = named_leaves(params)
        leaves = self.check(named)
        self._dtypes = {name: leaf.dtype for name, leaf in named_leaves(_cast_dtypes(params, specs))}
        platform = mesh.devices.flat[0].platform if mesh else jax.default_backend()
        stacked = platform != "cpu" if stacked is None else stacked
        self._stacked, self._tree = stacked, specs
        plain = mesh is None and not stacked and resolve(model.kernels) == "xla"
        self._in_panels = IN_PANELS if plain else ()  # a kernel that was asked for takes whole weights
        self.dtype = self._dtypes["embed"]
        self.release()
        if not any(isinstance(leaf, jax.ShapeDtypeStruct) for _, leaf in named):
            self.update(_deleted_after_use(leaves) if donate else leaves)

    def check(self, leaves: Leaves) -> Iterator[tuple[Name, Any]]:
        """Checks names and shapes: of a sequence or mapping at once, of other iterables as they are read.

        Raises:
            UserError: a name that is unknown, comes twice or does not come, or a shape that is not the weight's.
        """
        if isinstance(leaves, Mapping):
            leaves = list(leaves.items())
        pairs = self._each_checked(leaves)
        if isinstance(leaves, Sequence):
            pairs = iter(list(pairs))
        return pairs

    def update(self, leaves: Iterator[tuple[Name, Any]], donate: bool = False) -> None:
        """Replaces every weight by what ``check`` returned. Dtypes stay.

        An exception on the way leaves the weights incomplete, unless it comes before the first array.

        Args:
            leaves: names and arrays.
            donate: gives the arrays away: those that lie in their places in their dtypes are kept, not copied. NumPy
                arrays lie in their places on a CPU, and must not be written again.
        """
        for name, array in leaves:
            self.complete = False
            self._replace(name, array, donate)
            del array  # before the next is made
        self.complete = True

    def release(self) -> None:
        """Gives the memory of all weights back; they are incomplete until the next update."""
        self.params = {
            group: map_specs(lambda spec: None, part) if group == VISION else _without_arrays(part, self._stacked)
            for group, part in self._tree.items()
        }
        self.complete = False

    def move(self, move: Callable[[dict], dict]) -> None:
        """Replaces the tree by what ``move`` makes of it: the same arrays in another memory.

        Programs read them on the devices; between two steps of the engine they may be elsewhere.
        """
        self.params = move(self.params)

    def target(self, name: str) -> jax.ShapeDtypeStruct:
        """Shape, dtype and sharding of a weight, or of one of its layers if it has layers, as an update puts it."""
        spec, layered = self._specs[name], self._specs[name].axes[0] == "layers"
        shape, sharding = spec.shape[1:] if layered else spec.shape, self._sharding(name, layered)
        return jax.ShapeDtypeStruct(shape, self._dtypes[name], sharding=sharding)

    def checksums(self) -> dict[Name, frozenset[int]]:
        """The checksums of every weight or layer, see ``checksum``: one number where all devices hold the same."""
        sums = {}
        for name, spec in self._specs.items():
            for row, seeds, array in self._held(name, spec):
                sums[name, row] = replica_sums(array, seeds), array.sharding
                del array  # before the next is put together
        fetched = fetch([of_devices for of_devices, _ in sums.values()])
        checksums: dict[Name, frozenset[int]] = {}
        for ((name, first), (_, sharding)), of_devices in zip(sums.items(), fetched, strict=True):
            for row, each in enumerate(combine(np.asarray(of_devices), sharding), first or 0):
                checksums[name if first is None else (name, row)] = each
        return checksums

    def digest(self) -> str:
        """One number for all checksums; where copies of a weight differ it is one of no weights."""
        return digest({name: next(iter(each)) if len(each) == 1 else 0 for name, each in self.checksums().items()})

    def leaves(self) -> Iterator[tuple[Name, Array]]:
        """All weights as ``update`` takes them, layer by layer.

        They are the engine's own arrays, layers of its stacks, or copies of what it holds in panels.
        """
        for name, spec in self._specs.items():
            for first, seeds, array in self._held(name, spec):
                if first is None:
                    yield name, array
                else:
                    layers = enumerate(array if seeds.ndim else [array], first)
                    yield from (((name, row), layer) for row, layer in layers)
                    del layers
                del array

    def names(self) -> Iterator[Name]:
        """The names that ``leaves`` gives, in its order."""
        for name, spec in self._specs.items():
            if spec.axes[0] == "layers":
                yield from ((name, row) for row in self._rows(spec))
            else:
                yield name

    def _held(self, name: str, spec: ParamSpec) -> Iterator[tuple[int | None, np.ndarray, Array]]:
        """The arrays of a weight: number of the first layer, or None, seeds of the checksum, and the array."""
        group, *path = name.split("/")
        if spec.axes[0] != "layers":
            yield None, seed_of(name), _node(self.params, [group, *path])[name.split("/")[-1]]
        elif isinstance(self.params[group], list):
            for row, layer in enumerate(self.params[group]):
                held = _node(layer, path)[path[-1]]
                yield row, seed_of(name, row), _join(held, spec.shape[1:]) if name in self._in_panels else held
        else:
            seeds = np.array([seed_of(name, row) for row in self._rows(spec)])
            yield 0, seeds, _node(self.params[group], path)[path[-1]]

    def _each_checked(self, leaves: Iterable[tuple[Name, Any]]) -> Iterator[tuple[Name, Any]]:
        missing = {(name, row) for name, spec in self._specs.items() for row in self._rows(spec)}
        for name, array in leaves:
            mine = self._covered(name, array.shape if hasattr(array, "shape") else np.shape(array))
            if not mine <= missing:
                raise UserError(f"weight {_text(name)} comes twice in an update")
            missing -= mine
            yield name, array
            del array
        if missing:
            names = sorted({name for name, _ in missing})
            raise UserError(f"an update of the weights lacks {len(names)} of them, {names[0]} among them")

    def _rows(self, spec: ParamSpec) -> range:
        """The rows that a weight can be replaced by: its layers, or itself."""
        return range(spec.shape[0]) if spec.axes[0] == "layers" else range(1)

    def _covered(self, name: Name, shape: tuple[int, ...]) -> set[tuple[str, int]]:
        """The parts (weight, row) that an array is for."""
        whole = name if isinstance(name, str) else name[0]
        spec = self._specs.get(whole)
        if spec is None:
            raise UserError(f"there is no weight {whole!r}{nearest(str(whole), list(self._specs))}")
        rows, expected = set(self._rows(spec)), spec.shape
        if not isinstance(name, str):
            if spec.axes[0] != "layers" or name[1] not in rows:
                raise UserError(f"weight {whole} of shape {spec.shape} has no layer {name[1]}")
            rows, expected = {name[1]}, spec.shape[1:]
        if shape != expected:
            raise UserError(f"weight {_text(name)} has the shape {shape}, not {expected}")
        return {(whole, row) for row in rows}

    def _replace(self, name: Name, array: Any, donate: bool) -> None:
        whole, row = (name, None) if isinstance(name, str) else name
        group, *path = whole.split("/")
        part = self.params[group]
        if self._specs[whole].axes[0] != "layers":
            node, key = _node(self.params, [group, *path]), whole.split("/")[-1]
            node[key] = None  # before there is a second one
            node[key] = self._owned(whole, array, False, donate)
        elif isinstance(part, list):
            for i in range(len(part)) if row is None else (row,):
                node = _node(part[i], path)
                node[path[-1]] = None
                node[path[-1]] = self._owned(whole, array[i] if row is None else array, True, donate)
        else:
            self._write_rows(whole, _node(part, path), path[-1], array, row)

    def _write_rows(self, name: str, node: dict, key: str, array: Any, row: int | None) -> None:
        """Writes layers into their stack in place."""
        stack, node[key] = node[key], None
        if stack is None:  # at the start, or after a failure between here and the end
            empty = functools.partial(jnp.zeros, self._specs[name].shape, self._dtypes[name])
            stack = jax.jit(empty, out_shardings=self._shardings[name])()
        for i in range(len(stack)) if row is None else (row,):
            # No name for the new layer: it would keep it alive next to the one after it.
            layer = array[i] if row is None else array
            stack = jax.block_until_ready(_write_row(stack, self._placed(name, layer, is_layer=True), i))
        node[key] = stack

    def _owned(self, name: str, array: Any, is_layer: bool, donate: bool) -> Array | panels.Panels:
        """A copy of an array in its place, complete before the caller may change or delete the array."""
        placed = self._placed(name, array, is_layer)
        if name in self._in_panels:
            return jax.block_until_ready(_split(placed))
        # A row of a JAX array is an array of its own, that of a NumPy array is part of what was given away.
        return placed if donate else jax.block_until_ready(placed.copy())

    def _placed(self, name: str, array: Any, is_layer: bool) -> Array:
        """A weight or a layer in its dtype and on its devices, possibly in the caller's own memory."""
        if not isinstance(array, Array):
            array = np.asarray(array)
        return spread(array.astype(self._dtypes[name], copy=False), self._sharding(name, is_layer))

    def _sharding(self, name: str, is_layer: bool) -> Sharding:
        """Sharding of a weight, or of one of its layers."""
        sharding = self._shardings[name]
        if is_layer and isinstance(sharding, NamedSharding):
            return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
        return sharding


def checksums_of(leaves: Iterable[tuple[str, Any]], weights: EngineWeights) -> dict[Name, int]:
    """The checksums that whole weights will have in an engine, of which it need not have any yet.

    Args:
        leaves: names and arrays, whole and with their layers; each is let go before the next one is asked for.
        weights: of the engine, whose dtypes they get.
    """
    sums: dict[Name, int] = {}
    for name, array in leaves:
        target, layered = weights.target(name), array.ndim > len(weights.target(name).shape)
        seeds = np.array([seed_of(name, row) for row in range(len(array))]) if layered else seed_of(name)
        placed = jax.device_put(array.astype(target.dtype, copy=False), default_sharding())
        del array
        [of_device] = fetch([replica_sums(placed, seeds)])
        rows = enumerate(combine(np.asarray(of_device), placed.sharding))
        sums |= {(name, row) if layered else name: next(iter(each)) for row, each in rows}
        del placed
    return sums


_split = jax.jit(panels.split)
_join = jax.jit(panels.join, static_argnums=1)


@functools.partial(jax.jit, donate_argnums=(0,))
def _write_row(stack: Array, row: Array, i: int) -> Array:
    return stack.at[i].set(row)


def _cast_dtypes(params: dict, specs: Specs) -> dict:
    """The weights in the dtypes that the engine computes with, without data."""
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    return jax.eval_shape(lambda tree: cast_params(tree, specs, tree["embed"].dtype), abstract)


def _without_arrays(specs: Specs, stacked: bool) -> Any:
    """A tree with None for every weight of a group, or one for every layer of it."""
    if isinstance(specs, ParamSpec):
        return None
    copies = jax.tree.leaves(specs, is_leaf=is_spec)[0].shape[0]
    trees = [map_specs(lambda spec: None, specs) for _ in range(1 if stacked else copies)]
    return trees[0] if stacked else trees


def _deleted_after_use(leaves: Iterable[tuple[Name, Any]]) -> Iterator[tuple[Name, Any]]:
    for name, array in leaves:
        yield name, array
        if isinstance(array, Array):
            array.delete()


def _node(tree: dict, path: list[str]) -> dict:
    """The dict that holds the last entry of a path."""
    return functools.reduce(lambda node, key: node[key], path[:-1], tree)


def _text(name: Name) -> str:
    return name if isinstance(name, str) else f"{name[0]}[{name[1]}]"
