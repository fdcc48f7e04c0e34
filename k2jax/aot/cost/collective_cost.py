"""Collectives over the axes of a mesh, on the links of its devices: bytes and seconds."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from k2jax.aot.cost.network import Network
from k2jax.aot.cost.roofline import LINK
from k2jax.chips import Chip


class AxisCollective(NamedTuple):
    """The collectives of one kind over some axes, on one device in one step.

    Attributes:
        what: kind and axes, ``all-gather data+expert`` for instance.
        bytes: of their arrays.
        seconds: at 80 % of the links.
        hidden: of these seconds, those behind which other work runs.
    """

    what: str
    bytes: float
    seconds: float
    hidden: float = 0.0


class MeshNetwork:
    """Collectives over axes of a mesh, on the links of a slice."""

    def __init__(self, chip: Chip, mesh: Any):
        self.network = Network.of(chip, list(np.asarray(mesh.devices).flat))
        self.axes, self.numbers = mesh.axis_names, np.arange(mesh.size).reshape(mesh.devices.shape)

    def collective(self, kind: str, axes: tuple[str, ...], size: float, times: float = 1.0) -> AxisCollective:
        """A collective of ``size`` bytes that runs ``times`` in a step; nothing is hidden."""
        what = f"{kind} {'+'.join(axes)}"
        return AxisCollective(what, times * size, times * self.network.seconds(kind, self.groups(axes), size) / LINK)

    def shift(self, axis: str, size: float, times: float) -> AxisCollective:
        """Sends to the next device along an axis; all of it is hidden behind the next tick's work."""
        pairs = [pair for group in self.groups((axis,)) for pair in zip(group, (*group[1:], group[0]), strict=True)]
        seconds = times * self.network.seconds("collective-permute", pairs, size) / LINK
        return AxisCollective(f"collective-permute {axis}", times * size, seconds, seconds)

    @functools.cache  # noqa: B019  (lives as long as the process)
    def groups(self, axes: tuple[str, ...]) -> list[tuple[int, ...]]:
        """Device numbers of each group whose devices differ along these axes alone."""
        positions = [self.axes.index(axis) for axis in axes]
        others = [axis for axis in range(len(self.axes)) if axis not in positions]
        count = math.prod(self.numbers.shape[axis] for axis in positions)
        return [tuple(row) for row in self.numbers.transpose(others + positions).reshape(-1, count).tolist()]


@functools.lru_cache(maxsize=64)
def mesh_network(chip: Chip, mesh: Any) -> MeshNetwork:
    """The network of a mesh, shared by all layouts on it: finding the groups of devices takes most of the time."""
    return MeshNetwork(chip, mesh)
