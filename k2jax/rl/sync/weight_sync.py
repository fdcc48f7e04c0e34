"""Weights from the trainer to the engine on the same devices: cast, resharded and checked, bucket by bucket.

A bucket is a weight without layers, or one layer of a weight; of pipelined weights it is the layers that all stages
hold at the same place, so that all of them send at once. A compiled program turns a bucket from the form in which the
trainer stores it into the engine's arrays. The engine keeps these without a copy, and frees those that they replace.
Beside the trainer's and the engine's weights, memory holds one bucket at a time and what its program needs.

Training on samples of stale weights is a silent error. Every push therefore compares checksums: of what the trainer
cast, before it is moved, and of what each of the engine's devices holds afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import functools
import time
from typing import Any, NamedTuple

import jax
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding
import numpy as np

from k2jax import processes
from k2jax.config.schema import RolloutConfig
from k2jax.errors import UserError
from k2jax.inference.checksum import bit_sum, digest, seed_of
from k2jax.inference.engine import Engine
from k2jax.inference.mesh import AXES, make_engine_mesh
from k2jax.inference.weights import Name, named_leaves
from k2jax.model import cast_params
from k2jax.parallel.layout import Layout
from k2jax.parallel.resharding import logical_partition, waypoints
from k2jax.params import ParamSpec, abstract, named_specs
from k2jax.train.program import Program
from k2jax.train.state import compute_dtype


class StaleWeightsError(Exception):
    """The engine's weights are not those that the trainer last pushed."""


class SyncStats(NamedTuple):
    """One push.

    Attributes:
        seconds: wall time, checksums included.
        bytes: of all weights in the engine's dtype, each counted once however many devices hold it.
        checksum: of all weights.
        version: of the weights.
    """

    seconds: float
    bytes: int
    checksum: str
    version: int


class Bucket(NamedTuple):
    """What one call of a program brings to the engine.

    Attributes:
        weight: name of the weight, ``moe/attention/q_b``.
        index: where its layers are in the stored form: round and place in the chunk, or layer; () is the whole weight.
        rows: numbers of the layers, one for each stage; -1 in an empty slot, None of a weight without layers.
    """

    weight: str
    index: tuple[int, ...]
    rows: tuple[int | None, ...]

    @property
    def names(self) -> list[Name | None]:
        """Names of the arrays for ``Engine.update_params``; None in an empty slot."""
        return [self.weight if row is None else (self.weight, row) if row >= 0 else None for row in self.rows]


def colocated_engine(program: Program, rollout: RolloutConfig) -> Engine:
    """An engine for rollouts on the devices of the training, in its compute dtype; the first push brings its weights.

    Raises:
        UserError: sizes that do not divide over the devices, an engine on more devices than the training, or one that
            leaves devices out where each process has to hold a part of it.
    """
    config, logical = program.config, program.layout.logical
    dtype = rollout_dtype(program)
    return Engine(
        config.model,
        jax.eval_shape(lambda params: cast_params(params, logical, dtype), abstract(logical)),
        slots=rollout.slots,
        max_length=rollout.max_length,
        version=-1,
        mesh=rollout_mesh(program, rollout),
    )


def rollout_dtype(program: Program) -> Any:
    """The dtype in which engines of rollouts compute: that of the training."""
    return compute_dtype(program.config.train.compute_dtype, program.layout.platform)


def rollout_mesh(program: Program, rollout: RolloutConfig) -> Mesh | None:
    """The mesh of engines of rollouts, on the devices of the training; None is the default device.

    Raises:
        UserError: there are fewer devices, or each process has to hold a part of an engine that leaves some out.
    """
    devices = list(program.mesh.devices.flat)
    if processes.count() > 1 and rollout.data * rollout.expert != len(devices):
        raise UserError(
            f"config.rl.rollout.data {rollout.data} x expert {rollout.expert} leaves out some of the {len(devices)} "
            f"devices of several processes; with expert {rollout.expert}, rl.rollout.data="
            f"{max(1, len(devices) // rollout.expert)} would not"
        )
    alone = rollout.data * rollout.expert == 1 and devices[0] == jax.devices()[0]
    return None if alone else colocated_mesh(program.mesh, rollout)


def colocated_mesh(training: Mesh, rollout: RolloutConfig) -> Mesh:
    """The engine's mesh over the devices of the training.

    On all of them it has the training's order, so that one program leads from one mesh to the other: the devices that
    share the engine's experts are then neighbours of the training's mesh, along ``expert`` first.

    Raises:
        UserError: there are fewer devices.
    """
    if rollout.data * rollout.expert != training.size:
        return make_engine_mesh(rollout.data, rollout.expert, list(training.devices.flat))
    grid = training.devices.reshape(rollout.data, rollout.expert)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


class WeightSync:
    """Pushes the trainer's weights to the engine on the same devices, and tells whether the engine still has them.

    Args:
        program: of the training.
        engine: of the same model.
    """

    def __init__(self, program: Program, engine: Engine):
        self._engine, layout = engine, program.layout
        self.buckets = list(make_buckets(layout))
        kinds = bucket_kinds(layout, engine.weights.target)
        self._programs = {name: bucket_program(kind) for name, kind in kinds.items()}
        self._version: int | None = None
        self._sums: dict[Name, int] = {}

    def push(self, params: Any, version: int) -> SyncStats:
        """Brings weights to the engine.

        Args:
            params: of the training state, as the trainer stores them; they are only read.
            version: number of the weights, recorded with every token that they choose.

        Raises:
            StaleWeightsError: what arrived is not what was sent.
        """
        began = time.perf_counter()
        sent: list[tuple[Bucket, Array]] = []
        self._version = None  # in case the update breaks off
        self._engine.update_params(self._leaves(dict(named_leaves(params)), sent), version, donate=True)
        self._sums = sums_by_name(sent)
        self._version = version
        self.check(version)
        return SyncStats(time.perf_counter() - began, self.bytes, digest(self._sums), version)

    @property
    def bytes(self) -> int:
        """Bytes of a push, see SyncStats."""
        targets = {bucket.weight: self._engine.weights.target(bucket.weight) for bucket in self.buckets}
        sizes = {name: target.size * target.dtype.itemsize for name, target in targets.items()}
        return sum(sizes[bucket.weight] for bucket in self.buckets for name in bucket.names if name is not None)

    def check(self, version: int | None = None) -> None:
        """Checks, before a rollout, that the engine has the weights of the last push and no others.

        Args:
            version: number of the trainer's present weights; a push of them that was left out is found only with it.

        Raises:
            StaleWeightsError: it has not; the message says which weights differ.
        """
        engine, expected = self._engine, self._version if version is None else version
        if self._version is None:
            raise StaleWeightsError("no weights were pushed to the engine, or a push broke off")
        if not engine.weights.complete:
            raise StaleWeightsError(f"the engine has no whole set of weights since version {self._version}")
        if not expected == self._version == engine.version:
            raise StaleWeightsError(
                f"the engine has version {engine.version} of the weights, the last push was of version "
                f"{self._version}, and the trainer is at version {expected}"
            )
        held = engine.weights.checksums()
        wrong = [name for name, value in self._sums.items() if held[name] != {value}]
        if wrong:
            raise StaleWeightsError(
                f"the engine's weights are not those of version {self._version}: {len(wrong)} of {len(held)} checksums "
                f"differ, that of {wrong[0]} among them"
            )

    def _leaves(self, params: dict[str, Array], sent: list[tuple[Bucket, Array]]) -> Iterator[tuple[Name, Array]]:
        """Names and arrays for the engine; ``sent`` collects the checksums of each bucket."""
        for bucket in self.buckets:
            seeds = np.array([seed_of(bucket.weight, row or 0) for row in bucket.rows], np.uint32)
            arrays, sums = self._programs[bucket.weight](params[bucket.weight], seeds, *bucket.index)
            sent.append((bucket, sums))
            arrays.reverse()
            for name in bucket.names:
                array = arrays.pop()
                if name is not None:
                    yield name, array
                del array  # before the next bucket is made


class BucketKind(NamedTuple):
    """Buckets of one kind share a program.

    Attributes:
        layer_axes: 0 of a weight without layers, 1 of a stack, 3 of pipelined layers.
        stored: sharding of the weight as the trainer stores it.
        logical: the same in the logical form, see ``parallel.resharding``.
        dtype: of the engine.
        target: sharding of a layer, or of the weight, in the engine.
    """

    layer_axes: int
    stored: NamedSharding
    logical: NamedSharding
    dtype: np.dtype
    target: Sharding


def bucket_kinds(layout: Layout, target: Callable[[str], jax.ShapeDtypeStruct]) -> dict[str, BucketKind]:
    """The kind of every weight's buckets.

    Args:
        layout: of the training.
        target: what a layer of a weight, or the weight, is in the engine, by name.
    """
    logical = dict(named_leaves(layout.shardings(logical_partition(layout))))
    stored = dict(named_leaves(layout.shardings(layout.storage)))
    kinds = {}
    for name, spec in named_specs(layout.specs):
        wanted = target(name)
        kinds[name] = BucketKind(len(spec.layer_axes), stored[name], logical[name], wanted.dtype, wanted.sharding)
    return kinds


def make_buckets(layout: Layout) -> Iterator[Bucket]:
    """The buckets of all weights, in the order of the tree."""
    for name, spec in named_specs(layout.specs):
        yield from _buckets_of(name, spec)


def _buckets_of(name: str, spec: ParamSpec) -> Iterator[Bucket]:
    if not spec.layer_axes:
        yield Bucket(name, (), (None,))
    elif len(spec.layer_axes) == 1:
        yield from (Bucket(name, (row,), (row,)) for row in range(spec.shape[0]))
    else:
        numbers = np.where(spec.layer_numbers < 0, -1, spec.layer_numbers - spec.first_layer)
        for turn in range(spec.shape[0]):
            for place in range(spec.shape[2]):
                yield Bucket(name, (turn, place), tuple(numbers[turn, :, place].tolist()))


@functools.cache
def bucket_program(kind: BucketKind) -> Any:
    """The jitted program of a kind: ``(weight, seeds [n] uint32, *index) -> (n arrays, checksums [n])``."""
    mesh = kind.stored.mesh
    # Devices in another order, or other devices: the engine moves the arrays itself.
    direct = list(mesh.devices.flat) == _devices(kind.target)

    def program(weight: Array, seeds: Array, *index: Array) -> tuple[list[Array], Array]:
        layers = _constrained(_layers(weight, index).astype(kind.dtype), _of_bucket(kind))
        sums = jax.vmap(bit_sum)(layers, seeds)
        if kind.layer_axes > 1:  # an all-to-all over the stages, which the compiler would not find alone
            layers = _constrained(layers, kind.logical)
        if direct and isinstance(kind.target, NamedSharding):
            target = NamedSharding(kind.target.mesh, PartitionSpec(None, *kind.target.spec))
            for sharding in (*waypoints(kind.logical, target), target):
                layers = _constrained(layers, sharding)
        # Taken out of a stack, no array is the trainer's own, which it donates, even where nothing is to be changed.
        return list(layers), sums

    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.jit(program, out_shardings=(kind.target if direct else None, everywhere))


def _layers(weight: Array, index: tuple[Array, ...]) -> Array:
    """``[n, ...]`` of a weight: itself, one layer of it, or the layers at one place of all stages."""
    if not index:
        return weight[None]
    layers = lax.dynamic_index_in_dim(weight, index[0], 0, keepdims=len(index) == 1)
    return layers if len(index) == 1 else lax.dynamic_index_in_dim(layers, index[1], 1, keepdims=False)


def _of_bucket(kind: BucketKind) -> NamedSharding:
    """The sharding of ``_layers`` of a stored weight."""
    entries = list(kind.stored.spec)
    if kind.layer_axes == 0:
        entries = [None, *entries]
    elif kind.layer_axes == 3:
        entries = [entries[1] if len(entries) > 1 else None, *entries[3:]]
    return NamedSharding(kind.stored.mesh, PartitionSpec(*entries))


def _constrained(array: Array, sharding: NamedSharding) -> Array:
    return lax.with_sharding_constraint(array, sharding)


def _devices(sharding: Sharding) -> list[Any]:
    return list(sharding.mesh.devices.flat if isinstance(sharding, NamedSharding) else sharding.device_set)


def sums_by_name(sent: list[tuple[Bucket, Array]]) -> dict[Name, int]:
    """The checksums of buckets that were sent, by the names of their arrays."""
    fetched: Mapping[int, Any] = dict(enumerate(jax.device_get([sums for _, sums in sent])))
    return {
        name: int(value)
        for i, (bucket, _) in enumerate(sent)
        for name, value in zip(bucket.names, fetched[i], strict=True)
        if name is not None
    }
