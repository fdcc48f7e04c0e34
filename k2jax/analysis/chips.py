"""What TPUs can do, per chip: the only place where such numbers stand."""

from __future__ import annotations

from typing import NamedTuple

from k2jax.config.build import nearest
from k2jax.errors import UserError


class Chip(NamedTuple):
    """A TPU generation.

    Attributes:
        devices: JAX devices per chip.
        flops: peak bfloat16 FLOP/s of a chip.
        hbm_bytes: memory of a chip.
        hbm_bandwidth: bytes/s of a chip.
        vmem_bytes: on-chip memory of one core.
        link_bandwidth: bytes/s of one inter-chip link in one direction.
        torus: dimensions of the torus that the chips form.
        core_bandwidth: bytes/s in one direction between the two devices of a chip; 0 where there is one.
    """

    devices: int
    flops: float
    hbm_bytes: float
    hbm_bandwidth: float
    vmem_bytes: int
    link_bandwidth: float
    torus: int
    core_bandwidth: float

    def rings(self, sides: tuple[int, ...]) -> tuple[bool, ...]:
        """Which sides of a slice, in chips, close to rings: all of whole 4x4x4 cubes, in 2D those of a pod's 16."""
        if self.torus == 3:
            return (all(side % 4 == 0 for side in sides),) * len(sides)
        return tuple(side == 16 for side in sides)

    def seconds(self, flops: float, bytes: float) -> tuple[float, float]:
        """Least time of one device for the arithmetic, and for the traffic with HBM."""
        return flops * self.devices / self.flops, bytes * self.devices / self.hbm_bandwidth


# Google's documentation of each generation (cloud.google.com/tpu/docs), as of November 2026; VMEM as in
# jax.experimental.pallas.tpu.get_tpu_info_for_chip. A link in one direction is the documented bidirectional bandwidth
# of a chip (400, 1200, 800, 1200 GB/s) over twice its links, two for each dimension of the torus. The two devices of a
# tpu7x chip are joined by six times the bandwidth of a link.
CHIPS = {
    "v5e": Chip(1, 197e12, 16e9, 0.819e12, 128 << 20, 50e9, 2, 0.0),
    "v5p": Chip(1, 459e12, 95e9, 2.765e12, 64 << 20, 100e9, 3, 0.0),
    "v6e": Chip(1, 918e12, 32e9, 1.640e12, 128 << 20, 100e9, 2, 0.0),
    "tpu7x": Chip(2, 2307e12, 192e9, 7.380e12, 64 << 20, 100e9, 3, 600e9),
}


def chip_of(topology: str) -> Chip:
    """The chip of a topology such as ``v5p:8x8x16``.

    Raises:
        UserError: a generation that is not in the table.
    """
    name = topology.partition(":")[0]
    if name not in CHIPS:
        raise UserError(f"no TPU generation {name!r} in topology {topology!r}{nearest(name, list(CHIPS))}")
    return CHIPS[name]
