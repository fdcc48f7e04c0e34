"""How long a step takes at least: one fixed arithmetic, used for compiled programs, layouts and published runs alike.

    time = sum over ticks of max(compute, memory) + exposed collectives + optimizer
    compute = FLOPs / (70 % of peak), memory = HBM bytes / (80 % of bandwidth)

FLOPs are those that are executed, recomputation and a pipeline's idle ticks included; HBM bytes are the operands and
results of products and what kernels declare. A collective takes its bytes over 80 % of the bandwidth of its links, and
is hidden where the compiled program starts and finishes it apart with enough FLOPs in between; otherwise all of it is
exposed. The optimizer reads and writes its state once and runs Newton-Schulz. These are estimates: nothing was run.

MFU counts model FLOPs, ``6 x active non-embedding parameters + causal attention`` a token: neither embedding nor
head, half of the scores, nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from k2jax.analysis.chips import Chip
from k2jax.config.schema import ModelConfig
from k2jax.model.counts import training_flops_per_token

COMPUTE, MEMORY, LINK = 0.70, 0.80, 0.80


class Work(NamedTuple):
    """What one device does several times over."""

    times: float
    flops: float
    bytes: float


class Traffic(NamedTuple):
    """A collective's time in a step at 80 % of its links, and whether compute hides it."""

    seconds: float
    hidden: bool


class Roofline(NamedTuple):
    """Seconds of one step.

    Attributes:
        compute, memory: of all ticks.
        ticks: the sum of every tick's longer one.
        network: of all collectives.
        exposed: of those that nothing hides.
        optimizer: of the optimizer, Newton-Schulz included; its collectives are in ``network``.
        model_flops: of a step, over all devices, see above.
        peak: FLOP/s of all devices.
    """

    compute: float
    memory: float
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
        """Everything one after the other."""
        return self.compute + self.memory + self.network + self.optimizer

    @property
    def full_overlap(self) -> float:
        """Compute, memory and network at the same time, then the optimizer."""
        return max(self.compute, self.memory, self.network) + self.optimizer

    def mfu(self, seconds: float | None = None) -> float:
        """Model FLOPs over what the devices could do in that time; by default in the estimate's."""
        return self.model_flops / self.peak / (self.seconds if seconds is None else seconds)


def roofline(
    chip: Chip, devices: int, work: Iterable[Work], optimizer: Work, traffic: Iterable[Traffic], model_flops: float
) -> Roofline:
    """The estimate of one step.

    Args:
        chip: of the devices.
        devices: how many.
        work: ticks, of one device.
        optimizer: of one device, bytes of its state included.
        traffic: every collective.
        model_flops: of a step, over all devices.
    """
    times = [(one.times, *device_seconds(chip, one.flops, one.bytes)) for one in work]
    traffic = list(traffic)
    return Roofline(
        sum(count * compute for count, compute, _ in times),
        sum(count * memory for count, _, memory in times),
        sum(count * max(compute, memory) for count, compute, memory in times),
        sum(one.seconds for one in traffic),
        sum(one.seconds for one in traffic if not one.hidden),
        optimizer.times * max(device_seconds(chip, optimizer.flops, optimizer.bytes)),
        model_flops,
        chip.flops / chip.devices * devices,
    )


def device_seconds(chip: Chip, flops: float, bytes: float) -> tuple[float, float]:
    """Compute and memory time of one device."""
    compute, memory = chip.seconds(flops, bytes)
    return compute / COMPUTE, memory / MEMORY


def model_flops_per_token(config: ModelConfig, sequence: int) -> float:
    """Forward and backward, as MFU counts them here; ``training_flops_per_token`` has the head too."""
    return training_flops_per_token(config, sequence) - 6.0 * config.vocab * config.d_model
