"""Peak rates and memory of accelerators: the only table of such figures. It imports no jax."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
    """A TPU generation.

    Attributes:
        kinds: what ``jax.Device.device_kind`` says of its devices.
        devices: JAX devices per chip.
        flops: peak dense bfloat16 rate of a chip [FLOP/s].
        hbm_bytes: memory of a chip.
        hbm_bandwidth: of a chip [bytes/s].
        vmem_bytes: on-chip memory of one core.
        link_bandwidth: of one inter-chip link in one direction [bytes/s].
        torus: dimensions of the torus that the chips form.
        core_bandwidth: in one direction between the two devices of a chip; 0 where a chip is one device [bytes/s].
        host_bandwidth: between a chip and its host, in one direction [bytes/s].
        host_chips: chips of a host.
        network_bandwidth: a chip's share of its host's network, in one direction [bytes/s].
    """

    kinds: tuple[str, ...]
    _: dataclasses.KW_ONLY
    devices: int
    flops: float
    hbm_bytes: float
    hbm_bandwidth: float
    vmem_bytes: int
    link_bandwidth: float
    torus: int
    core_bandwidth: float
    host_bandwidth: float
    host_chips: int
    network_bandwidth: float

    def rings(self, sides: tuple[int, ...]) -> tuple[bool, ...]:
        """Which sides of a slice close to rings: in 3D all of a slice of whole 4x4x4 cubes, in 2D sides of 16 chips."""
        if self.torus == 3:
            return (all(side % 4 == 0 for side in sides),) * len(sides)
        return tuple(side == 16 for side in sides)

    def seconds(self, flops: float, bytes: float) -> tuple[float, float]:
        """Least time of one device for its arithmetic and for its HBM traffic [s]."""
        return flops * self.devices / self.flops, bytes * self.devices / self.hbm_bandwidth


# Google's documentation of each generation (cloud.google.com/tpu/docs), as of November 2026; VMEM as in
# jax.experimental.pallas.tpu.get_tpu_info_for_chip. A link in one direction is the documented bidirectional bandwidth
# of a chip (400, 1200, 800, 1200 GB/s) over twice its links, two for each dimension of the torus. The two devices of a
# tpu7x chip are joined by six times the bandwidth of a link. Host bandwidths are PCIe's as "How to Scale Your Model"
# (jax-ml.github.io/scaling-book, chapter 2) gives them; for tpu7x nothing is published, and v6e's figure is assumed.
# Networks are those of the data centre as documented: 6.4 Tbit/s for 256 chips of v5e, 50 Gbit/s a chip of v5p; the 100
# Gbit/s a chip of v6e and tpu7x are assumed.
CHIPS = {
    "v5e": Chip(
        ("TPU v5 lite",),
        devices=1,
        flops=197e12,
        hbm_bytes=16e9,
        hbm_bandwidth=0.819e12,
        vmem_bytes=128 << 20,
        link_bandwidth=50e9,
        torus=2,
        core_bandwidth=0.0,
        host_bandwidth=16e9,
        host_chips=8,
        network_bandwidth=3.125e9,
    ),
    "v5p": Chip(
        ("TPU v5", "TPU v5p"),
        devices=1,
        flops=459e12,
        hbm_bytes=95e9,
        hbm_bandwidth=2.765e12,
        vmem_bytes=64 << 20,
        link_bandwidth=100e9,
        torus=3,
        core_bandwidth=0.0,
        host_bandwidth=16e9,
        host_chips=4,
        network_bandwidth=6.25e9,
    ),
    "v6e": Chip(
        ("TPU v6 lite",),
        devices=1,
        flops=918e12,
        hbm_bytes=32e9,
        hbm_bandwidth=1.640e12,
        vmem_bytes=128 << 20,
        link_bandwidth=100e9,
        torus=2,
        core_bandwidth=0.0,
        host_bandwidth=32e9,
        host_chips=8,
        network_bandwidth=12.5e9,
    ),
    "tpu7x": Chip(
        ("TPU7x",),
        devices=2,
        flops=2307e12,
        hbm_bytes=192e9,
        hbm_bandwidth=7.380e12,
        vmem_bytes=64 << 20,
        link_bandwidth=100e9,
        torus=3,
        core_bandwidth=600e9,
        host_bandwidth=32e9,
        host_chips=4,
        network_bandwidth=12.5e9,
    ),
}

PEAK_FLOPS = {kind: chip.flops / chip.devices for chip in CHIPS.values() for kind in chip.kinds} | {
    "TPU v4": 275e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989.4e12,
    "NVIDIA H200": 989.4e12,
}
"""Peak dense bfloat16 rate of one JAX device by its ``device_kind``, from the vendors' data sheets [FLOP/s]."""
