"""Checksums of weights, computed where the weights are: one uint32 for each weight or layer.

The bits of every element are mixed with its position and with the weight's name, and the results are added modulo 2^32.
A sum does not depend on the order of its terms, so that arrays which are sharded differently have one checksum, while
two elements, two layers or two weights that change places have another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
import math
from typing import Any
import zlib

import jax
from jax import Array, lax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, Sharding
import numpy as np

_BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}  # by bytes of an element
_ODD = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1, 0x2545F491)  # one for each axis: xxHash's primes


def seed_of(name: str, row: int = 0) -> np.uint32:
    """What the checksum of a weight, or of one of its layers, starts from."""
    return np.uint32(zlib.crc32(f"{name}/{row}".encode()))


def bit_sum(array: Array, seed: Array, origin: Sequence[Any] | None = None) -> Array:
    """``[]`` uint32, the checksum of an array; call it under ``jit``.

    Args:
        array: numbers of 1, 2 or 4 bytes.
        seed: ``[]`` uint32, of ``seed_of``.
        origin: where the array starts in the whole weight, for each axis; by default it is the whole weight.
    """
    bits = lax.bitcast_convert_type(array, _BITS[array.dtype.itemsize]).astype(jnp.uint32)
    position = seed
    for axis, size in enumerate(array.shape):
        index = jnp.arange(size, dtype=jnp.uint32) + jnp.uint32(0 if origin is None else origin[axis])
        position = position + lax.broadcast_in_dim(index * jnp.uint32(_ODD[axis]), array.shape, (axis,))
    return _mixed(bits ^ position).sum(dtype=jnp.uint32)


def _mixed(x: Array) -> Array:
    """The finalizer of MurmurHash3: every bit of the input reaches every bit of the output."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def replica_sums(array: Array, seeds: np.ndarray) -> Array:
    """The part of every device in the checksum of a weight, or of each of its stacked layers, still on the devices.

    Args:
        array: a weight; where ``seeds`` is a vector, ``[L, ...]``.
        seeds: uint32, ``[]`` or ``[L]``.

    Returns:
        uint32 ``[devices]`` or ``[devices, L]``, for ``combine``.
    """
    return _device_sums(array, seeds, array.sharding)


@functools.partial(jax.jit, static_argnames="sharding")
def _device_sums(array: Array, seeds: Array, sharding: Sharding) -> Array:
    stacked = bool(seeds.ndim)

    def own(x: Array, seeds: Array) -> Array:
        shape = x.shape[1:] if stacked else x.shape
        axes = spec[1:] if stacked else spec
        origin = [
            lax.axis_index(axes[axis]) * size if axis < len(axes) and axes[axis] else 0
            for axis, size in enumerate(shape)
        ]
        each = lambda x, seed: bit_sum(x, seed, origin)  # noqa: E731
        return (jax.vmap(each)(x, seeds) if stacked else each(x, seeds))[None]

    if not isinstance(sharding, NamedSharding):
        spec = PartitionSpec()
        return own(array, seeds)
    spec, mesh = sharding.spec, sharding.mesh
    everywhere, by_device = PartitionSpec(), PartitionSpec(mesh.axis_names)
    return jax.shard_map(own, mesh=mesh, in_specs=(spec, everywhere), out_specs=by_device, check_vma=False)(
        array, seeds
    )


def combine(sums: np.ndarray, sharding: Sharding) -> list[frozenset[int]]:
    """The checksums of the copies of a weight, or of each of its layers: a set of one number if all copies are alike.

    Args:
        sums: of ``replica_sums``, fetched.
        sharding: of the weight.
    """
    by_layer = sums.reshape(len(sums), -1)
    if isinstance(sharding, NamedSharding):
        mesh: Mapping[str, int] = sharding.mesh.shape
        parts = [axis for entry in sharding.spec if entry for axis in ((entry,) if isinstance(entry, str) else entry)]
        summed = tuple(list(mesh).index(axis) for axis in parts)
        by_layer = by_layer.reshape(*mesh.values(), -1).sum(axis=summed, dtype=np.uint32)
        by_layer = by_layer.reshape(math.prod(by_layer.shape[:-1]), -1)
    return [frozenset(column.tolist()) for column in by_layer.T]


def digest(sums: Mapping[Any, int]) -> str:
    """One number, of 8 hexadecimal digits, for the checksums of all weights by name."""
    lines = "\n".join(f"{name} {value:08x}" for name, value in sorted((str(name), sums[name]) for name in sums))
    return f"{zlib.crc32(lines.encode()):08x}"
