"""How long a step takes by one fixed arithmetic, the same for compiled programs, layouts and published runs.

    time = sum over ticks of max(compute, memory, host) + exposed collectives + optimizer
    compute = FLOPs / (70 % of peak), memory = HBM bytes / (80 % of bandwidth), host = host bytes / (80 % of PCIe)

FLOPs are those that are executed: recomputation, a pipeline's idle ticks and partly filled row blocks of the experts
included. HBM bytes are the operands and results of products and what kernels declare; host bytes are offloaded
activations, out and back. A collective takes its bytes over 80 % of the bandwidth of its links, and is hidden where
the compiled program starts and finishes it apart with enough FLOPs in between; otherwise all of it is exposed. The
optimizer reads and writes its state once and runs Newton-Schulz. These are estimates: nothing was run.

MFU counts model FLOPs, ``6 x active non-embedding parameters + causal attention`` a token: neither embedding nor head,
half of the scores, nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
from typing import NamedTuple

from k2jax.chips import Chip
from k2jax.config.schema import ModelConfig
from k2jax.model.counts import training_flops_per_token

COMPUTE, MEMORY, LINK, HOST = 0.70, 0.80, 0.80, 0.80
"""Assumed shares of the peak rates of arithmetic, HBM, links between chips and the link to the host."""


class Work(NamedTuple):
    """Work that one device does ``times`` in a step: FLOPs, HBM bytes, and bytes to and from the host."""

    times: float
    flops: float
    bytes: float
    host_bytes: float = 0.0


class CollectiveTime(NamedTuple):
    """Seconds of a collective in a step at 80 % of its links, and how many of them other work hides."""

    seconds: float
    hidden: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
    """Seconds of one step.

    Attributes:
        compute, memory, host: of all ticks.
        ticks: the sum of every tick's longest one.
        network: of all collectives.
        exposed: of those that nothing hides.
        optimizer: of the optimizer, Newton-Schulz included; its collectives are in ``network``.
        model_flops: of a step, over all devices, see above.
        peak: of all devices [FLOP/s].
    """

    compute: float
    memory: float
    host: float
    ticks: float
    network: float
    exposed: float
    optimizer: float
    model_flops: float
    peak: float

    @property
    def seconds(self) -> float:
        """The estimate."""
        return self.ticks + self.exposed + self.optimizer

    @property
    def no_overlap(self) -> float:
        """The time if everything ran one after the other."""
        return self.compute + self.memory + self.host + self.network + self.optimizer

    @property
    def full_overlap(self) -> float:
        """The time if compute, memory, host and network ran at the same time, and then the optimizer."""
        return max(self.compute, self.memory, self.host, self.network) + self.optimizer

    def mfu(self, seconds: float | None = None) -> float:
        """Model FLOPs over what the devices could do in that time; by default in the estimate's."""
        return self.model_flops / self.peak / (self.seconds if seconds is None else seconds)


def roofline(
    chip: Chip,
    devices: int,
    work: Iterable[Work],
    optimizer: Work,
    traffic: Iterable[CollectiveTime],
    model_flops: float,
) -> Roofline:
    """The estimate of one step.

    Args:
        chip: of the devices.
        devices: their number.
        work: ticks, of one device.
        optimizer: of one device, bytes of its state included.
        traffic: every collective.
        model_flops: of a step, over all devices.
    """
    times = [(one.times, *device_seconds(chip, one.flops, one.bytes), host_seconds(chip, one)) for one in work]
    compute, memory, host = (sum(row[0] * row[term] for row in times) for term in (1, 2, 3))
    traffic = list(traffic)
    return Roofline(
        compute=compute,
        memory=memory,
        host=host,
        ticks=sum(count * max(terms) for count, *terms in times),
        network=sum(one.seconds for one in traffic),
        exposed=sum(one.seconds - one.hidden for one in traffic),
        optimizer=optimizer.times * max(device_seconds(chip, optimizer.flops, optimizer.bytes)),
        model_flops=model_flops,
        peak=chip.flops / chip.devices * devices,
    )


def device_seconds(chip: Chip, flops: float, bytes: float) -> tuple[float, float]:
    """Compute time and HBM time of one device [s]."""
    compute, memory = chip.seconds(flops, bytes)
    return compute / COMPUTE, memory / MEMORY


def host_seconds(chip: Chip, work: Work) -> float:
    """Time of one device's traffic with its host, the two directions one after the other [s]."""
    return work.host_bytes * chip.devices / (HOST * chip.host_bandwidth)


def model_flops_per_token(config: ModelConfig, sequence: int) -> float:
    """FLOPs of forward and backward pass as MFU counts them, without the head of ``training_flops_per_token``."""
    return training_flops_per_token(config, sequence) - 6.0 * config.vocab * config.d_model
