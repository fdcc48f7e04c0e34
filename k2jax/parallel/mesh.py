"""The mesh of a run: how many devices each axis has, and which tokens of a batch a device computes."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, PartitionSpec

from k2jax.batch import PackedBatch
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.model.attention import attention_of
from k2jax.parallel.torus import device_grid
from k2jax.sharding import CONTEXT, TENSOR, neighbours

BATCH_AXES = ("data", "expert")  # that shard rows
TOKEN_AXES = (*BATCH_AXES, CONTEXT)  # that shard tokens


def axis_sizes(config: Config, devices: int) -> dict[str, int]:
    """Size of each mesh axis, from the one that speaks least to the one that speaks most: neighbours come last.

    ``context`` and ``tensor`` are there only where they are above 1.

    Raises:
        UserError: the axes do not multiply to ``devices``, there are more groups of devices than rows, or tokens or
            heads do not divide over ``context``; it names a size that would do.
    """
    parallel = config.parallel
    inner = {axis: getattr(parallel, axis) for axis in (CONTEXT, TENSOR) if getattr(parallel, axis) > 1}
    others = parallel.expert * parallel.stage * math.prod(inner.values())
    data = parallel.data or devices // others
    if data * others != devices:
        name = f"config.parallel.data {parallel.data or '(what is left)'} x expert {parallel.expert}"
        more = "".join(f" x {axis} {size}" for axis, size in inner.items())
        fitting = f"; parallel.data={devices // others} would" if devices % others == 0 else ""
        raise UserError(
            f"{name} x stage {parallel.stage}{more} needs {max(data, 1) * others} devices, there are {devices}{fitting}"
        )
    if config.train.batch_size < data * parallel.expert:
        raise UserError(
            f"config.train.batch_size {config.train.batch_size} gives no row to each of {data} x {parallel.expert} "
            f"(data x expert) groups of devices; raise it to {data * parallel.expert}, or lower config.parallel.data"
        )
    _check_context(config)
    return {"data": data, "stage": parallel.stage, "expert": parallel.expert, **inner}


def _check_context(config: Config) -> None:
    """Every device of ``context`` has as many tokens of a row, and for attention as many heads."""
    model, parallel, size = config.model, config.parallel, config.parallel.context
    length, heads = config.data.sequence_length, model.heads // parallel.tensor
    attention = attention_of(model)
    counts = {f"config.data.sequence_length {length}": length, f"the {heads} heads of a device": heads}
    keys = attention.key_heads(model) // parallel.tensor
    counts[f"the {keys} kv_heads of a device"] = keys
    if attention.splits_by_stage and parallel.stage > 1 and 0 < model.dense_layers < model.layers:
        around = -(-model.heads // parallel.stage)
        counts[f"the {around} heads of a stage in the leading dense layers"] = around
    for name, count in counts.items():
        if count % size:
            near = " or ".join(map(str, neighbours(count, size)))
            raise UserError(f"config.parallel.context {size} does not divide {name}; parallel.context={near} would")


def batch_partitions(mesh: Mesh, batch: PackedBatch) -> PackedBatch:
    """PartitionSpecs of a batch ``[micro-batches, rows, ...]``, in a tree of its structure.

    Rows go over ``data`` and ``expert``, and the tokens of leaves ``[M, B, S, ...]`` over ``context``. What a leaf
    ``[M, B, N]`` says of turns or branches is on every device that has a part of the row.
    """
    context = tuple(axis for axis in (CONTEXT,) if axis in mesh.shape)
    length = batch.tokens.shape[-1]

    def partition(leaf: Any) -> PartitionSpec:
        return PartitionSpec(None, BATCH_AXES, *(context if leaf.shape[2:3] == (length,) else ()))

    return jax.tree.map(partition, batch)


def make_mesh(config: Config, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh of a config over ``devices``, all of this run's by default.

    Raises:
        UserError: as ``axis_sizes``, or ``data`` does not divide over the slices of a TPU.
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = axis_sizes(config, len(devices))
    return Mesh(device_grid(devices, sizes), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def rows_per_micro_batch(config: Config, mesh: Mesh) -> int:
    """Rows of a micro-batch over all devices: an equal number on each, the last micro-batch filled up with padding.

    Raises:
        UserError: there are so few rows that a micro-batch would be nothing but padding.
    """
    groups, train = math.prod(mesh.shape[axis] for axis in BATCH_AXES), config.train
    rows = -(-train.batch_size // (train.micro_batches * groups)) * groups
    if rows * (train.micro_batches - 1) >= train.batch_size:
        raise UserError(
            f"config.train.batch_size {train.batch_size} does not fill {train.micro_batches} micro-batches of {rows} "
            f"rows ({groups} groups of devices); train.micro_batches={-(-train.batch_size // rows)} would do"
        )
    return rows
