"""Placement of mesh axes on the torus of a TPU slice: exchanges in compact blocks, pipeline stages in rings.

Devices that share a layer or a row communicate most, so they are placed as neighbours before all others. In an
all-to-all every device sends to every other, and the busiest link decides: in a block of a torus that is a line or a
ring along the block's longest side. Sixteen ranks on a ring load a link twice as much as a block of 4 x 4. A stage
sends to the next stage alone, so stages follow whole rings. JAX's ``mesh_utils.create_device_mesh`` gives each mesh
axis as few sides of the torus as it can instead.

The network between slices is many times slower. Only ``data`` crosses it: gradients and weights, once a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
import functools
from typing import Any

import numpy as np

from k2jax.errors import UserError

_BLOCKS = ("tensor", "context", "expert")


def device_grid(devices: Sequence[Any], sizes: Mapping[str, int]) -> np.ndarray:
    """Devices as an array with an axis for each of ``sizes``, in their order; on a TPU by their position in the torus.

    Args:
        devices: of one or more slices, or of another platform.
        sizes: of the mesh axes, ``data`` among them.

    Raises:
        UserError: ``data`` does not divide over the slices.
    """
    order = tuple(sizes)
    if devices[0].platform != "tpu":
        return np.asarray(list(devices), dtype=object).reshape(list(sizes.values()))
    slices = defaultdict(list)
    for device in devices:
        slices[getattr(device, "slice_index", 0)].append(device)  # a lone slice may not number itself
    inside = sizes_of_slice(sizes, len(slices))
    grids = [torus_grid(slices[number], inside, order) for number in sorted(slices)]
    return np.concatenate(grids, axis=order.index("data"))


def sizes_of_slice(sizes: Mapping[str, int], slices: int) -> dict[str, int]:
    """Sizes of the mesh axes within one of ``slices``.

    Raises:
        UserError: ``data`` does not divide over them.
    """
    if sizes["data"] % slices:
        raise UserError(
            f"data {sizes['data']} does not divide over {slices} slices, between which no other axis may go: it "
            f"must be a multiple of {slices}"
        )
    return {**sizes, "data": sizes["data"] // slices}


def torus_grid(devices: Sequence[Any], sizes: Mapping[str, int], order: Sequence[str]) -> np.ndarray:
    """Devices as an array with one axis for each of ``order``.

    Args:
        devices: of one slice, with ``coords`` and ``core_on_chip``.
        sizes: of the mesh axes; ``tensor``, ``context``, ``expert`` and ``stage`` are placed first,
            in this order.
        order: of the result's axes.
    """
    unplaced = np.asarray(list(devices), dtype=object).reshape([sizes[axis] for axis in order])
    torus = _torus(devices)
    if torus is None:
        return unplaced
    left = torus.shape
    factors: dict[str, tuple[int, ...]] = {}
    placed_first = [name for name in (*_BLOCKS, "stage") if name in sizes]
    for name in [*placed_first, *(name for name in order if name not in placed_first)]:
        options = list(_splits(sizes[name], left))
        if not options:  # sizes that do not divide the torus's sides: any order of the devices must do
            return unplaced
        strides = [side // part for side, part in zip(torus.shape, left, strict=True)]
        cost = functools.partial(_exchange_cost, strides=strides) if name in _BLOCKS else _ring_cost
        factors[name] = min(options, key=lambda split: cost(split, torus.shape))
        left = tuple(side // part for side, part in zip(left, factors[name], strict=True))
    # Every side of the torus is cut into parts, the outermost first: neighbours belong to the axis placed first.
    outer = list(reversed(factors))
    shape = [factors[name][side] for side in range(torus.ndim) for name in outer]
    cut = torus.reshape(shape)
    positions = {name: [side * len(outer) + outer.index(name) for side in range(torus.ndim)] for name in outer}
    moved = cut.transpose([position for name in order for position in positions[name]])
    return moved.reshape([sizes[name] for name in order])


def _torus(devices: Sequence[Any]) -> np.ndarray | None:
    """Devices by x, y, z and core; None where they do not fill a box."""
    places = np.array([(*device.coords, device.core_on_chip) for device in devices])
    places = places - places.min(0)
    torus = np.empty(places.max(0) + 1, dtype=object)
    if torus.size != len(devices):
        return None
    for device, place in zip(devices, places, strict=True):
        torus[tuple(place)] = device
    return torus


def _splits(size: int, sides: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every way to write ``size`` as a product of divisors of the sides."""
    if not sides:
        if size == 1:
            yield ()
        return
    for part in range(1, sides[0] + 1):
        if sides[0] % part == 0 and size % part == 0:
            for rest in _splits(size // part, sides[1:]):
                yield part, *rest


def _exchange_cost(split: tuple[int, ...], sides: tuple[int, ...], strides: Sequence[int]) -> tuple[float, ...]:
    """Load of the busiest link: the longest side of the block, half of it where that goes round; then few, short sides.

    What the devices of one chip send shares its links, whether they are of one group or of two. Groups whose devices
    are ``strides`` apart, because others were placed before, lie within each other and share links too.
    """
    used = [(part, side, far) for part, side, far in zip(split[:-1], sides[:-1], strides[:-1], strict=True) if part > 1]
    loads = [far * part * (0.5 if far * part == side and part > 2 else 1.0) for part, side, far in used]
    return max(loads, default=0.0), len(used), sum(side for _, side, _ in used)


def _ring_cost(split: tuple[int, ...], sides: tuple[int, ...]) -> tuple[float, ...]:
    """Whole rings first, then as few sides as can be."""
    broken = sum(part not in (1, side) for part, side in zip(split, sides, strict=True))
    return broken, sum(part > 1 for part in split)
