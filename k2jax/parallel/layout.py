"""How every weight is sharded on the mesh, in storage and in a step's computation; derived from the weight table."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import itertools
import math
from typing import Any

import jax
from jax import Array, lax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.model.attention import attention_of
from k2jax.model.vision import multimodal_specs
from k2jax.parallel.mesh import TOKEN_AXES
from k2jax.parallel.schedule import cut
from k2jax.params import LAYER_AXES, TEXT, ParamSpec, Specs, by_group, is_spec, map_specs, named_specs
from k2jax.sharding import (
    AROUND_PIPELINE,
    PIPELINE,
    TENSOR,
    WHOLE_ROLES,
    WITHOUT_PIPELINE,
    neighbours,
    partition_spec,
)
from pallas_kernels.routed_experts import F_MULTIPLE

_VECTORS = ("norm", "bias", "router_bias")  # too small to be worth sharding further


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """One config on one mesh.

    Attributes:
        mesh: axes ``data``, ``stage``, ``expert``, and ``context`` and ``tensor`` where above 1.
        layer_group: the group of layers that pipeline stages divide: ``moe``, or ``dense`` in a dense model.
        logical: spec tree as the model declares it.
        specs: spec tree in storage: pipelined layers are ``[rounds, stages, layers, ...]``.
        storage, compute: PartitionSpec of every weight as stored between steps, and as a step computes with it.
        chunk_layers, chunks: layers of a pipeline chunk, and how many chunks there are.
    """

    mesh: Mesh
    layer_group: str
    logical: Specs
    specs: Specs
    storage: Any
    compute: Any
    chunk_layers: int
    chunks: int

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.mesh.shape["stage"]

    @property
    def marked_axes(self) -> tuple[str, ...]:
        """Mesh axes over whose devices every part of a gradient differs until it is summed.

        Not ``tensor``: its devices have the same tokens, and types say what they have different parts of.
        """
        return tuple(axis for axis in self.mesh.axis_names if axis != TENSOR)

    @property
    def text(self) -> Layout:
        """The layout of the decoder alone."""
        names = ("logical", "specs", "storage", "compute")
        return dataclasses.replace(self, **{name: by_group(getattr(self, name))[TEXT] for name in names})

    @property
    def platform(self) -> str:
        """Platform of the mesh's devices. They may be abstract (ahead-of-time compilation)."""
        return self.mesh.devices.flat[0].platform

    def shardings(self, partition_specs: Any) -> Any:
        """NamedShardings of a tree of PartitionSpecs."""
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), partition_specs, is_leaf=_is_partition)

    def to_compute(self, params: Any, dtype: Any) -> Any:
        """The compute copy of stored weights: cast, padded where an axis does not divide, and gathered."""

        def gather(spec: ParamSpec, storage: PartitionSpec, compute: PartitionSpec, leaf: Array) -> Array:
            leaf = leaf if spec.role in WHOLE_ROLES else leaf.astype(dtype)
            # Cast first and gather then: half the bytes travel.
            leaf = lax.with_sharding_constraint(leaf, NamedSharding(self.mesh, storage))
            padded = padded_shape(spec, compute, self.mesh)
            missing = [(0, length - size) for length, size in zip(padded, leaf.shape, strict=True)]
            leaf = jnp.pad(leaf, missing) if any(extra for _, extra in missing) else leaf
            return lax.with_sharding_constraint(leaf, NamedSharding(self.mesh, compute))

        return map_specs(gather, self.specs, self.storage, self.compute, params)

    def gradients_to_storage(self, grads: Any) -> Any:
        """Gradients of the compute copy, without padding and sharded as the weights are stored."""

        def scatter(spec: ParamSpec, storage: PartitionSpec, grad: Array) -> Array:
            if grad.shape != spec.shape:
                grad = grad[tuple(slice(size) for size in spec.shape)]
            return lax.with_sharding_constraint(grad, NamedSharding(self.mesh, storage))

        return map_specs(scatter, self.specs, self.storage, grads)


def make_layout(config: Config, mesh: Mesh) -> Layout:
    """The layout of a config on a mesh.

    Raises:
        UserError: layers, experts, heads or widths that do not divide; it names numbers that would.
    """
    logical = multimodal_specs(config.model)
    body = "moe" if "moe" in logical else "dense"
    layers = config.model.layers - (config.model.dense_layers if body == "moe" else 0)
    if (
        mesh.shape["stage"] > 1
        and body == "moe"
        and "dense" in logical
        and not attention_of(config.model).splits_by_stage
    ):
        raise UserError(
            "config.parallel.stage above 1 cannot share out the leading dense layers of a model with grouped-query "
            "attention; set config.model.dense_layers to 0, or parallel.stage to 1"
        )
    chunk_layers, chunks = _chunks(layers, mesh.shape["stage"], config.parallel.virtual_stages, body)
    specs = dict(logical)
    if mesh.shape["stage"] > 1:
        slots = (config.parallel.virtual_stages, mesh.shape["stage"], chunk_layers)
        specs[body] = map_specs(lambda spec: _staged(spec, slots), logical[body])
    pipelined = {name for name, _ in named_specs(specs) if name.startswith(body + "/")}
    compute = [_compute_spec(name, spec, mesh, name in pipelined) for name, spec in named_specs(specs)]
    _check_lanes(config, mesh)
    storage = [_storage_spec(spec, placed, mesh) for (_, spec), placed in zip(named_specs(specs), compute, strict=True)]
    structure = jax.tree.structure(specs, is_leaf=is_spec)
    return Layout(
        mesh=mesh,
        layer_group=body,
        logical=logical,
        specs=specs,
        storage=jax.tree.unflatten(structure, storage),
        compute=jax.tree.unflatten(structure, compute),
        chunk_layers=chunk_layers,
        chunks=chunks,
    )


def padded_shape(spec: ParamSpec, placed: PartitionSpec, mesh: Mesh) -> tuple[int, ...]:
    """The shape with every sharded axis raised to a multiple of its devices."""
    return tuple(
        -(-size // shards) * shards for size, shards in zip(spec.shape, shards_of(spec, placed, mesh), strict=True)
    )


def shards_of(spec: ParamSpec, placed: PartitionSpec, mesh: Mesh) -> tuple[int, ...]:
    """The number of shards along each axis of a weight."""
    return tuple(math.prod(mesh.shape[axis] for axis in axes) for axes in entries(spec, placed))


def entries(spec: ParamSpec, placed: PartitionSpec) -> list[tuple[str, ...]]:
    """Mesh axes of every axis of a weight, as tuples."""
    listed = [*placed, *[None] * (len(spec.shape) - len(placed))]
    return [() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in listed]


def _chunks(layers: int, stages: int, virtual_stages: int, body: str) -> tuple[int, int]:
    chunks = cut(layers, stages, virtual_stages) if stages > 1 or virtual_stages == 1 else None
    if chunks:
        return chunks
    if stages == 1:
        raise UserError(f"config.parallel.virtual_stages {virtual_stages} needs config.parallel.stage above 1")
    fitting = [v for v in range(1, layers + 1) if cut(layers, stages, v)]
    if fitting:
        near = sorted(sorted(fitting, key=lambda v: abs(v - virtual_stages))[:2])
        fix = f"parallel.virtual_stages={' or '.join(map(str, near))} would"
    else:
        near = [s for s in range(1, layers + 1) if cut(layers, s, virtual_stages)] or neighbours(layers, stages)
        near = sorted(sorted(near, key=lambda s: abs(s - stages))[:2])
        fix = f"parallel.stage={' or '.join(map(str, near))} would"
    raise UserError(
        f"{layers} {body} layers do not make equal chunks for config.parallel.stage {stages} with virtual_stages "
        f"{virtual_stages}; {fix}"
    )


def _check_lanes(config: Config, mesh: Mesh) -> None:
    model, shards = config.model, mesh.shape.get(TENSOR, 1)
    if model.kernels == "pallas" and shards > 1 and model.moe.expert_ffn % (shards * F_MULTIPLE):
        fitting = [n for n in range(1, model.moe.expert_ffn + 1) if model.moe.expert_ffn % (n * F_MULTIPLE) == 0] or [1]
        near = min(fitting, key=lambda n: abs(n - shards))
        raise UserError(
            f"config.parallel.tensor {shards} cuts config.model.moe.expert_ffn {model.moe.expert_ffn} into parts that "
            f"are no multiples of {F_MULTIPLE}, as the experts' kernels need; parallel.tensor={near} would do"
        )


def _staged(spec: ParamSpec, slots: tuple[int, int, int]) -> ParamSpec:
    empty = math.prod(slots) - spec.shape[0]
    return dataclasses.replace(spec, shape=(*slots, *spec.shape[1:]), axes=(*LAYER_AXES, *spec.axes[1:]), empty=empty)


def _compute_spec(name: str, spec: ParamSpec, mesh: Mesh, pipelined: bool) -> PartitionSpec:
    if pipelined:
        return partition_spec(name, spec, mesh, PIPELINE)
    rules, padded = AROUND_PIPELINE, tuple(AROUND_PIPELINE)
    if mesh.shape["stage"] == 1 and TENSOR in mesh.shape:
        rules, padded = WITHOUT_PIPELINE, ("vocab",)
    # What is computed together is padded to divide; heads are not, since groups of them may share a key.
    sharded = [
        mesh.shape[rules[axis]] if axis in padded else size for axis, size in zip(spec.axes, spec.shape, strict=True)
    ]
    return partition_spec(name, dataclasses.replace(spec, shape=tuple(sharded), segments=()), mesh, rules)


def _storage_spec(spec: ParamSpec, compute: PartitionSpec, mesh: Mesh) -> PartitionSpec:
    """The compute partition, sharded further over the axes that it leaves: by whole experts, else along one side."""
    placed = entries(spec, compute)
    placed = [
        axes if size % shards == 0 else ()
        for axes, size, shards in zip(placed, spec.shape, shards_of(spec, compute, mesh), strict=True)
    ]
    if spec.role in _VECTORS:
        return _partition(placed)
    taken = set(itertools.chain(*placed))
    if spec.role == "matrix":  # of what lies around the pipeline: Muon exchanges it as it does the stages' own
        taken.add("stage")
    # `tensor` last: where its devices have one gradient, each takes its part of what the others are reduced to.
    left = [axis for axis in (*TOKEN_AXES, "stage", TENSOR) if axis not in taken and mesh.shape.get(axis, 1) > 1]
    for axes in _subsets(left, mesh):
        count = math.prod(mesh.shape[axis] for axis in axes)
        for at in _candidates(spec, placed):
            cut_already = math.prod(mesh.shape[axis] for axis in placed[at])
            if spec.shape[at] % (count * cut_already) == 0:
                placed[at] = (*placed[at], *axes)
                return _partition(placed)
    return _partition(placed)


def _candidates(spec: ParamSpec, placed: list[tuple[str, ...]]) -> list[int]:
    """Axes to cut further, the best first: experts, then the smaller side of the matrix, then the other."""
    experts = [spec.axes.index("experts")] if "experts" in spec.axes and spec.role not in WHOLE_ROLES else []
    sides = sorted((side for side in (spec.inputs, spec.outputs) if side), key=spec.size_of)
    firsts = [spec.axes.index(side[0]) for side in sides]
    return experts + [at for at in firsts if not placed[at]] + [at for at in firsts if placed[at]]


def _subsets(axes: list[str], mesh: Mesh) -> Iterator[tuple[str, ...]]:
    """Non-empty subsets in order, those of most devices first."""
    subsets = [subset for size in range(1, len(axes) + 1) for subset in itertools.combinations(axes, size)]
    yield from sorted(subsets, key=lambda subset: -math.prod(mesh.shape[axis] for axis in subset))


def _partition(placed: list[tuple[str, ...]]) -> PartitionSpec:
    listed = [axes[0] if len(axes) == 1 else axes or None for axes in placed]
    while listed and listed[-1] is None:
        listed.pop()
    return PartitionSpec(*listed)


def _is_partition(x: Any) -> bool:
    return isinstance(x, PartitionSpec)
