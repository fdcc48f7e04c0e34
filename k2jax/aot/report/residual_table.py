"""What a pipeline's chunks could keep until their backward, as a text table and as JSON."""

from __future__ import annotations

import dataclasses
from itertools import accumulate
from typing import Any, NamedTuple

from k2jax.aot.cost.chunk_residuals import ChunkResidual, ChunkResiduals, chunk_residuals
from k2jax.aot.cost.estimate import Estimate, Placement
from k2jax.aot.report.tables import as_json, column_table
from k2jax.config.schema import Config
from k2jax.report.table import percent, significant

LIMIT = 90 / 95  # of a device's HBM that a step may take, what the compiler does not foresee left aside


class StepTaken(NamedTuple):
    """The step without kept residuals.

    Attributes:
        topology: its devices.
        bytes: of HBM.
        seconds: of its time.
        estimate: by formulas.
        placement: of its weights.
    """

    topology: str
    bytes: float
    seconds: float
    estimate: Estimate
    placement: Placement


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptSet:
    """A residual with all that spare more for a byte.

    Attributes:
        last: name of the residual.
        room, mean: bytes in all slots, with the room of buffers and with the mean number of routed rows.
        spared: compute and exchange [s].
        seconds: of the step, with every spared exchange taken as exposed: a bound from below.
        bandwidth: of the link to the host, in each direction, where all of it is offloaded, with the room [bytes/s].
        mean_bandwidth: the same with the mean number of rows.
    """

    last: str
    room: float
    mean: float
    spared: float
    seconds: float
    bandwidth: float
    mean_bandwidth: float


def kept_sets(found: ChunkResiduals, seconds: float) -> list[KeptSet]:
    """The empty set, then every residual with those before it; a tick of the shortened step moves a chunk each way."""
    sets = [_kept_set("the input alone", (0.0, 0.0, found.unread_seconds), 0, found, seconds)]
    columns = [(one.chunk_bytes, one.mean_bytes, one.compute + one.exchange) for one in found.residuals]
    for one, sums in zip(found.residuals, accumulate(columns, _add), strict=True):
        room, mean, more = sums
        sets.append(_kept_set(_title(one), (room, mean, found.unread_seconds + more), one.slots, found, seconds))
    return sets


def _kept_set(
    last: str, sums: tuple[float, float, float], slots: int, found: ChunkResiduals, seconds: float
) -> KeptSet:
    """A set of a chunk's bytes, with the room and with the mean, and what it spares [s]."""
    room, mean, spared = sums
    tick = found.tick * (1 - spared / seconds)
    return KeptSet(
        last=last,
        room=slots * room,
        mean=slots * mean,
        spared=spared,
        seconds=seconds - spared,
        bandwidth=room / tick,
        mean_bandwidth=mean / tick,
    )


def _add(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def residual_table(config: Config, step: StepTaken) -> str:
    """Every residual, and the sets that they add up to."""
    found, limit = chunk_residuals(config, step.placement), step.estimate.hbm.limit
    left, chip = LIMIT * limit - step.bytes, step.placement.chip
    residuals = {
        "residual": _title,
        "MB a chunk": lambda one: one.chunk_bytes / 1e6,
        "live slots": lambda one: one.slots,
        "GB, room": lambda one: one.chunk_bytes * one.slots / 1e9,
        "GB, mean": lambda one: one.mean_bytes * one.slots / 1e9,
        "TFLOP": lambda one: one.flops / 1e12,
        "compute s": lambda one: one.compute,
        "GB sent": lambda one: one.exchanged / 1e9,
        "exchange s": lambda one: one.exchange,
    }
    sets = {
        "with all above, also": lambda one: one.last,
        "GB, room": lambda one: one.room / 1e9,
        "fits": lambda one: "yes" if one.room <= left else "no",
        "GB, mean": lambda one: one.mean / 1e9,
        "fits ": lambda one: "yes" if one.mean <= left else "no",
        "spared s": lambda one: one.spared,
        "step s": lambda one: one.seconds,
        "MFU": lambda one: percent(step.estimate.roofline.mfu(one.seconds)),
        "host GB/s, room": lambda one: one.bandwidth / 1e9,
        "mean": lambda one: one.mean_bandwidth / 1e9,
    }
    return "\n\n".join(
        [
            f"{step.topology}: the step takes {significant(step.bytes / 1e9)} of {significant(limit / 1e9)} GB a "
            f"device and {significant(step.seconds)} s, {percent(step.estimate.roofline.mfu(step.seconds))} MFU; "
            f"{significant(left / 1e9)} GB are left below {significant(LIMIT * limit / 1e9)}",
            f"Residuals of a chunk on a device, in FP8 where that is supported, and what a step's re-runs are spared\n"
            f"{column_table(residuals, found.residuals).rstrip()}",
            f"Sets; the link to the host has {significant(chip.host_bandwidth / chip.devices / 1e9)} GB/s a device "
            f"in each direction\n{column_table(sets, kept_sets(found, step.seconds)).rstrip()}",
        ]
    )


def residual_json(config: Config, step: StepTaken) -> dict[str, Any]:
    """All figures, for ``json.dumps``."""
    found = chunk_residuals(config, step.placement)
    return {
        "topology": step.topology,
        "taken": step.bytes,
        "limit": LIMIT * step.estimate.hbm.limit,
        "residuals": as_json(found.residuals),
        "sets": as_json(kept_sets(found, step.seconds)),
    }


def _title(one: ChunkResidual) -> str:
    return "+".join(one.names)
