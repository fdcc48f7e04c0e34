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
    """

    devices: int
    flops: float
    hbm_bytes: float
    hbm_bandwidth: float
    vmem_bytes: int

    def seconds(self, flops: float, bytes: float) -> tuple[float, float]:
        """Least time of one device for the arithmetic, and for the traffic with HBM."""
        return flops * self.devices / self.flops, bytes * self.devices / self.hbm_bandwidth


# Google's documentation of each generation (cloud.google.com/tpu/docs), as of November 2026; VMEM as in
# jax.experimental.pallas.tpu.get_tpu_info_for_chip.
CHIPS = {
    "v5e": Chip(1, 197e12, 16e9, 0.819e12, 128 << 20),
    "v5p": Chip(1, 459e12, 95e9, 2.765e12, 64 << 20),
    "v6e": Chip(1, 918e12, 32e9, 1.640e12, 128 << 20),
    "tpu7x": Chip(2, 2307e12, 192e9, 7.380e12, 64 << 20),
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
