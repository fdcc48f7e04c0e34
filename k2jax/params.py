"""The declaration of weights: each weight is one ParamSpec, and everything about weights is derived from their tree.

Initial values, optimizer groups, weight-decay mask, QK-Clip targets, matrix views for Muon, Hugging Face names and
layouts, and parameter counts all come from this table. No code finds a weight by a substring of its path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import dataclasses
import itertools
import math
from typing import Any
import zlib

import jax
from jax import Array
import jax.numpy as jnp
import numpy as np

Specs = Any  # a nested dict whose leaves are ParamSpec

LAYER_AXES = ("rounds", "stages", "layers")  # order in which a pipeline stores layers; a plain stack has only the last
ROLES = ("matrix", "embedding", "head", "router", "router_bias", "norm", "bias")
STACK_NAMES = {"gate_up": ("gate_proj", "up_proj")}  # stack axes whose elements have names instead of numbers
TEXT, VISION = "text", "vision"
"""Groups of layers: the decoder's, and the tower's with its projector, which are one branch of a tree of weights."""


def by_group(tree: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A tree over all weights, as one tree for each group of layers that there is."""
    text = {name: part for name, part in tree.items() if name != VISION}
    return {TEXT: text, VISION: tree[VISION]} if VISION in tree else {TEXT: text}


def from_groups(groups: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The tree over all weights of which ``by_group`` gives these groups."""
    return groups[TEXT] | {name: tree for name, tree in groups.items() if name != TEXT}


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """One weight, stacked over its layers (and experts).

    Attributes:
        shape: sizes, one per axis.
        axes: logical axis names, one per axis.
        role: one of ``ROLES``; it decides the optimizer group.
        outputs: axes that together form the output side of the linear map (for vectors: the vector).
        inputs: axes that together form the input side; empty for vectors.
        init: ``normal`` | ``zeros`` | ``ones``.
        hf: Hugging Face tensor name, a template over the stack axes, e.g. ``model.layers.{layers}.mlp.gate.weight``.
        first_layer: number of the decoder layer at index 0 of the ``layers`` axis.
        segments: parts of the last axis, as (name, width), where one projection has several outputs; QK-Clip scales by
            their names.
        empty: slots at the end of the layers' axes that hold no layer, as in some pipelines; they stay 0.
        part: (i, n) where the Hugging Face tensor has n such weights one below the other, and this is number i.
        hf_axes: whether the Hugging Face tensor has one axis for each of ``outputs`` and ``inputs``, instead of one for
            all outputs and one for all inputs.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    role: str
    outputs: tuple[str, ...]
    _: dataclasses.KW_ONLY
    hf: str
    inputs: tuple[str, ...] = ()
    init: str = "normal"
    first_layer: int = 0
    segments: tuple[tuple[str, int], ...] = ()
    empty: int = 0
    part: tuple[int, int] = (0, 1)
    hf_axes: bool = False

    def __post_init__(self):
        """Checks that the declaration is consistent."""
        if len(self.shape) != len(self.axes) or self.role not in ROLES:
            raise ValueError(f"inconsistent ParamSpec: {self}")
        if self.segments and sum(width for _, width in self.segments) != self.shape[-1]:
            raise ValueError(f"segments do not fill the last axis: {self}")

    @property
    def stack(self) -> tuple[str, ...]:
        """Axes that count separate matrices or vectors (layers, experts, gate_up), in storage order."""
        return tuple(axis for axis in self.axes if axis not in self.inputs + self.outputs)

    @property
    def layer_axes(self) -> tuple[str, ...]:
        """The axes of ``LAYER_AXES`` that the weight has; they precede all other axes."""
        return tuple(axis for axis in self.axes if axis in LAYER_AXES)

    @property
    def layer_numbers(self) -> np.ndarray:
        """The decoder layer of every slot of the layers' axes, int; -1 in empty slots."""
        shape = self.shape[: len(self.layer_axes)]
        numbers = self.first_layer + np.arange(math.prod(shape))
        return np.where(np.arange(len(numbers)) < len(numbers) - self.empty, numbers, -1).reshape(shape)

    def size_of(self, axes: tuple[str, ...]) -> int:
        """Product of the sizes of ``axes``."""
        return math.prod(self.shape[self.axes.index(axis)] for axis in axes)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def is_spec(x: Any) -> bool:
    """Whether ``x`` is a ParamSpec: the ``is_leaf`` of spec trees."""
    return isinstance(x, ParamSpec)


def map_specs(function: Callable[..., Any], specs: Specs, *trees: Any) -> Any:
    """Applies ``jax.tree.map`` to a spec tree and other trees of its structure."""
    return jax.tree.map(function, specs, *trees, is_leaf=is_spec)


def named_specs(specs: Specs) -> Iterator[tuple[str, ParamSpec]]:
    """Yields ``("moe/attention/q_b", spec)`` pairs in tree order."""
    for path, spec in jax.tree_util.tree_flatten_with_path(specs, is_leaf=is_spec)[0]:
        yield "/".join(str(entry.key) for entry in path), spec


def initialize(specs: Specs, key: Array, std: float) -> dict:
    """Draws initial float32 weights.

    Each weight draws from its own key, derived from its path, so that adding a weight changes no other.

    Args:
        specs: spec tree.
        key: PRNG key.
        std: standard deviation of the ``normal`` initializer.
    """

    def draw(name: str, spec: ParamSpec) -> Array:
        if spec.init == "normal":
            return std * jax.random.normal(jax.random.fold_in(key, zlib.crc32(name.encode())), spec.shape, jnp.float32)
        return jnp.full(spec.shape, {"zeros": 0.0, "ones": 1.0}[spec.init], jnp.float32)

    leaves = [draw(name, spec) for name, spec in named_specs(specs)]
    return jax.tree.unflatten(jax.tree.structure(specs, is_leaf=is_spec), leaves)


def abstract(specs: Specs, dtype: Any = jnp.float32) -> dict:
    """Returns ShapeDtypeStructs of the weights: shapes without memory."""
    return map_specs(lambda spec: jax.ShapeDtypeStruct(spec.shape, dtype), specs)


def count(specs: Specs, where: Callable[[ParamSpec], bool] = lambda spec: True) -> int:
    """Counts parameters, without router biases, which are balancing state and not trained."""
    return sum(spec.size for _, spec in named_specs(specs) if spec.role != "router_bias" and where(spec))


def to_matrices(spec: ParamSpec, leaf: Array) -> Array:
    """Reshapes a weight to a stack of matrices ``[*stack, inputs, outputs]`` (vectors: ``[*stack, outputs]``)."""
    stack = spec.stack
    order = [spec.axes.index(axis) for axis in stack + spec.inputs + spec.outputs]
    shape = tuple(spec.shape[i] for i in order[: len(stack)])
    shape += (spec.size_of(spec.inputs),) if spec.inputs else ()
    return leaf.transpose(order).reshape(*shape, spec.size_of(spec.outputs))


def from_matrices(spec: ParamSpec, matrices: Array) -> Array:
    """Inverts ``to_matrices``."""
    order = [spec.axes.index(axis) for axis in spec.stack + spec.inputs + spec.outputs]
    return matrices.reshape([spec.shape[i] for i in order]).transpose(np.argsort(order))


def hf_tensors(spec: ParamSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields (Hugging Face tensor name, index into ``to_matrices``' stack axes) for every tensor of the weight.

    The Hugging Face tensor, or the ``part`` of it, is the transpose, ``[outputs, inputs]``, of the indexed matrix.
    """
    stack = spec.stack
    for index in itertools.product(*(range(spec.size_of((axis,))) for axis in stack)):
        names = {
            axis: STACK_NAMES[axis][i] if axis in STACK_NAMES else i + (spec.first_layer if axis == "layers" else 0)
            for axis, i in zip(stack, index, strict=True)
        }
        yield spec.hf.format(**names), index
