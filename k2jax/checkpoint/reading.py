"""Which process reads what of a checkpoint, so that every byte is read once whatever mesh and processes it is read by.

Storage gives out whole chunks. A process that wants half of one reads all of it, and the process that wants the other
half reads it again; what lies on all devices is read by every process. So an array is first read in that layout, of a
few, which costs fewest bytes, and the devices then exchange what they need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import itertools
import math
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np
import orbax.checkpoint as ocp

_PIECES = 64
_SMALLEST_CHUNK = 1 << 20  # bytes; orbax advises against smaller ones


def chunk_bytes(nbytes: int) -> int:
    """Largest chunk to write of an array of ``nbytes``: up to 64 processes can then share it out without overlap."""
    return max(nbytes // _PIECES, _SMALLEST_CHUNK)


def reading_sharding(shape: Sequence[int], chunk: Sequence[int], wanted: NamedSharding) -> NamedSharding:
    """The sharding in which an array costs fewest bytes to read: ``wanted`` itself where no other costs less.

    Args:
        shape: of the array.
        chunk: shape of the chunks that it is stored in.
        wanted: how it is to lie in the end.
    """
    best, least = wanted, elements_read(shape, chunk, wanted)
    candidates = _candidates(shape, wanted)
    while least > math.prod(shape) and (sharding := next(candidates, None)):
        if (cost := elements_read(shape, chunk, sharding)) < least:
            best, least = sharding, cost
    return best


def elements_read(shape: Sequence[int], chunk: Sequence[int], sharding: NamedSharding) -> int:
    """How many elements all processes together read of an array; a process reads each of its distinct parts once."""
    parts = {
        (device.process_index, tuple(range(size)[cut].start for size, cut in zip(shape, index, strict=True)))
        for device, index in sharding.devices_indices_map(tuple(shape)).items()
    }
    part = sharding.shard_shape(tuple(shape))
    total = 0
    for _, starts in parts:
        total += math.prod(
            -(-min(start + length, size) // step) * step - start // step * step
            for start, length, size, step in zip(starts, part, shape, chunk, strict=True)
        )
    return total


def _candidates(shape: Sequence[int], wanted: NamedSharding) -> Iterator[NamedSharding]:
    """One axis or two cut over processes and, where it divides, over the devices of each as well."""
    devices = sorted(wanted.mesh.devices.flat, key=lambda device: (device.process_index, device.id))
    processes = len({device.process_index for device in devices})
    if len(devices) % processes:
        return
    for outer in (size for size in range(1, processes) if processes % size == 0):
        grid = np.array(devices).reshape(outer, processes // outer, -1)
        mesh = Mesh(grid, ("outer", "inner", "local"), axis_types=(AxisType.Auto,) * 3)
        for inner_axes in (("inner", "local"), ("inner",)):
            for first, second in itertools.permutations(range(-1, len(shape)), 2):
                if second < 0 or (first < 0) != (outer == 1):  # one axis alone where there is nothing outer
                    continue
                placed = [None] * len(shape)
                placed[second] = inner_axes
                if first >= 0:
                    placed[first] = "outer"
                sharding = NamedSharding(mesh, PartitionSpec(*placed))
                if all(size % cuts == 0 for size, cuts in zip(shape, _cuts(placed, mesh), strict=True)):
                    yield sharding


def _cuts(placed: Sequence[str | tuple[str, ...] | None], mesh: Mesh) -> list[int]:
    tuples = [(axes,) if isinstance(axes, str) else axes or () for axes in placed]
    return [math.prod(mesh.shape[axis] for axis in axes) for axes in tuples]


def reading_layout(folder: Path, wanted: Any) -> Any:
    """ShapeDtypeStructs of what is stored in ``folder``, with the shardings to read it in.

    Args:
        folder: of one item of a checkpoint.
        wanted: the same tree with the shardings it is to have in the end.
    """
    if jax.process_count() == 1:
        return wanted
    stored = jax.tree.leaves(ocp.StandardCheckpointHandler().metadata(folder).tree, is_leaf=_is_stored)
    chunks = {array.name: array.storage.chunk_shape for array in stored if _is_stored(array)}
    leaves, treedef = jax.tree.flatten(wanted)
    names = ocp.tree.to_flat_dict(wanted, sep=".")
    laid = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=reading_sharding(leaf.shape, chunks[name], leaf.sharding))
        if name in chunks
        else leaf
        for name, leaf in zip(names, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, laid)


def lay_out(arrays: Any, wanted: Any) -> Any:
    """A tree of arrays with the shardings of ``wanted``: devices exchange what was read elsewhere."""
    if jax.process_count() == 1:
        return arrays
    return jax.jit(lambda tree: tree, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, wanted))(arrays)


def _is_stored(x: Any) -> bool:
    return isinstance(x, ocp.metadata.ArrayMetadata)
