"""Collectives over the axes of a mesh, on the links of its devices: bytes and seconds."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from k2jax.analysis.chips import Chip
from k2jax.analysis.network import Network
from k2jax.analysis.roofline import LINK


class Sent(NamedTuple):
    """One kind of collective over some axes, of a device and step; ``bytes`` of its arrays."""

    what: str
    bytes: float
    seconds: float
    hidden: bool


class Wires:
    """Collectives over axes of a mesh, on the links of a slice."""

    def __init__(self, chip: Chip, mesh: Any):
        self.network = Network.of(chip, list(np.asarray(mesh.devices).flat))
        self.axes, self.numbers = mesh.axis_names, np.arange(mesh.size).reshape(mesh.devices.shape)

    def send(self, kind: str, axes: tuple[str, ...], size: float, times: float = 1.0) -> Sent:
        """A collective that nothing hides."""
        what = f"{kind} {'+'.join(axes)}"
        seconds = times * self.network.seconds(kind, self.groups(axes), size) / LINK
        return Sent(what, times * size, seconds, False)

    def shift(self, axis: str, size: float, times: float) -> Sent:
        """To the neighbour, while the next tick computes."""
        pairs = [pair for group in self.groups((axis,)) for pair in zip(group, (*group[1:], group[0]), strict=True)]
        seconds = times * self.network.seconds("collective-permute", pairs, size) / LINK
        return Sent(f"collective-permute {axis}", times * size, seconds, True)

    @functools.cache  # noqa: B019  (kept for as long as the process sweeps)
    def groups(self, axes: tuple[str, ...]) -> list[tuple[int, ...]]:
        """Device numbers of each group that differs along these axes alone."""
        at = [self.axes.index(axis) for axis in axes]
        rest = [axis for axis in range(len(self.axes)) if axis not in at]
        count = math.prod(self.numbers.shape[axis] for axis in at)
        return [tuple(row) for row in self.numbers.transpose(rest + at).reshape(-1, count).tolist()]


@functools.lru_cache(maxsize=64)
def wires_of(chip: Chip, mesh: Any) -> Wires:
    """Shared by all layouts of one mesh: where groups of devices are takes the time."""
    return Wires(chip, mesh)
