"""Time of collectives on the links between chips, from the places of their devices.

Every group of a collective runs at the same time, so links are shared as the groups lie. With B the bytes of the whole
array on one device (gathered for an all-gather, before it for a reduce-scatter, all rows for an exchange), n devices in
a group, and w the bandwidth of one link in one direction:

- all-gather, reduce-scatter: ``(n - 1)/n B / W``; all-reduce: twice that. W is the bandwidth into a device: for every
  dimension of the torus that the group spans ``2w`` around a ring and ``w`` along a line, over the number of groups on
  the busiest of those links. Such a W needs a group that is a block of the torus, evenly spaced; one that is not passes
  its data around a single ring, each hop by the shortest way.
- all-to-all and collective-permute: every message takes the shortest way, dimension by dimension, and the busiest link
  decides: ``bytes on it / w``. B/n go to each other device of an all-to-all, B over each pair of a permute.

Two devices on one chip share its links; what passes between them takes the connection inside the chip. Latency is not
counted.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import math
from typing import Any

import numpy as np

from k2jax.chips import Chip

GATHERS = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}
EXCHANGES = ("all-to-all", "ragged-all-to-all")
Groups = Sequence[Sequence[int]]


class Network:
    """The links of a slice whose devices are numbered as in a mesh.

    Args:
        chip: its generation.
        places: int ``[devices, 3]``, the chip of each device by its place in the torus.
        cores: int ``[devices]``, which device of the chip it is.
    """

    def __init__(self, chip: Chip, places: np.ndarray, cores: np.ndarray):
        self.chip, self.places, self.cores = chip, np.asarray(places), np.asarray(cores)
        self.sides = tuple(int(side) for side in self.places.max(0) + 1)
        self.rings = chip.rings(self.sides)

    @classmethod
    def of(cls, chip: Chip, devices: Sequence[Any]) -> Network:
        """The network of JAX's abstract devices, in the order of the mesh."""
        places = np.array([device.coords for device in devices])
        return cls(chip, places, np.array([device.core_on_chip for device in devices]))

    def seconds(self, kind: str, groups: Groups, size: float) -> float:
        """Time of one collective at full link bandwidth.

        Args:
            kind: as in a compiled program, ``all-gather`` for instance.
            groups: device numbers of every group; of a collective-permute, its (source, target) pairs.
            size: B, see above.
        """
        return float(size * self._seconds_per_byte(kind, tuple(tuple(group) for group in groups)))

    @functools.lru_cache(maxsize=256)  # noqa: B019  (a network lives as long as the command)
    def _seconds_per_byte(self, kind: str, groups: tuple[tuple[int, ...], ...]) -> float:
        if kind == "collective-permute":
            return self._busiest(np.array([pair for pair in groups if pair[0] != pair[1]]), 1.0)
        count = len(groups[0])
        if count == 1:
            return 0.0
        if kind in EXCHANGES:
            members = np.array(groups)
            sources, targets = np.repeat(members, count, axis=1), np.tile(members, (1, count))
            pairs = np.stack([sources.ravel(), targets.ravel()], axis=1)
            return self._busiest(pairs[pairs[:, 0] != pairs[:, 1]], 1.0 / count)
        return GATHERS[kind] * self._gather(groups)

    def _gather(self, groups: tuple[tuple[int, ...], ...]) -> float:
        """Seconds per byte of an all-gather: through the links once per chip, and inside the chip."""
        members = np.array(groups)
        chips = len(np.unique(self.places[members[0]], axis=0))
        inside = (1 - chips / len(members[0])) / self.chip.core_bandwidth if chips < len(members[0]) else 0.0
        if chips == 1:
            return inside
        blocks = [self._block(group) for group in members]
        if all(block is not None for block in blocks):
            return inside + (1 - 1 / chips) / self._block_bandwidth(blocks)
        around = np.stack([members, np.roll(members, -1, axis=1)], axis=2).reshape(-1, 2)
        return self._busiest(around, 1 - 1 / len(members[0]))

    def _block(self, group: np.ndarray) -> list[np.ndarray] | None:
        """The sorted places along each dimension, where the group is all their combinations, evenly spaced."""
        chips = np.unique(self.places[group], axis=0)
        spans = [np.unique(chips[:, dimension]) for dimension in range(chips.shape[1])]
        even = all(len(set(np.diff(span))) <= 1 for span in spans)
        return spans if even and math.prod(map(len, spans)) == len(chips) else None

    def _block_bandwidth(self, blocks: list[list[np.ndarray]]) -> float:
        """W of the module's docstring."""
        used = [np.zeros(self.sides, np.int64) for _ in self.sides]
        closed = {}
        for spans in blocks:
            for dimension, span in enumerate(spans):
                if len(span) < 2:
                    continue
                step, side = span[1] - span[0], self.sides[dimension]
                closed[dimension] = self.rings[dimension] and len(span) > 2 and step * len(span) == side
                lines = list(spans)
                lines[dimension] = np.arange(side) if closed[dimension] else np.arange(span[0], span[-1])
                used[dimension][np.ix_(*lines)] += 1
        ways = [(2 if ring else 1) / used[dimension].max() for dimension, ring in closed.items()]
        return self.chip.link_bandwidth * sum(ways)

    def _busiest(self, pairs: np.ndarray, share: float) -> float:
        """Seconds for every pair to send ``share`` bytes, over the busiest link."""
        if not len(pairs):
            return 0.0
        at, target = self.places[pairs[:, 0]].copy(), self.places[pairs[:, 1]]
        same = (at == target).all(1)
        within = np.bincount(pairs[same, 0], minlength=1)
        busiest = 0
        for dimension, side in enumerate(self.sides):
            steps = self._steps(at[:, dimension], target[:, dimension], dimension)
            for sign in (1, -1):
                load = np.zeros(math.prod(self.sides), np.int64)
                for hop in range(int(np.maximum(sign * steps, 0).max())):
                    place = at[sign * steps > hop]
                    place[:, dimension] = (place[:, dimension] + sign * hop) % side
                    load += np.bincount(np.ravel_multi_index(tuple(place.T), self.sides), minlength=len(load))
                busiest = max(busiest, int(load.max()))
            at[:, dimension] = target[:, dimension]
        inside = within.max() / self.chip.core_bandwidth if same.any() else 0.0
        return share * max(busiest / self.chip.link_bandwidth, inside)

    def _steps(self, start: np.ndarray, end: np.ndarray, dimension: int) -> np.ndarray:
        """Signed hops along one dimension, the shorter way round a ring; half way round, half go each way."""
        steps, side = end - start, self.sides[dimension]
        if not self.rings[dimension]:
            return steps
        forward = steps % side
        back = (2 * forward > side) | ((2 * forward == side) & (start % 2 == 1))
        return np.where(back, forward - side, forward)
