"""Time that the collectives of a compiled program take on the network of its devices."""

from __future__ import annotations

from collections import defaultdict
import dataclasses
from typing import Any, NamedTuple

import numpy as np

from k2jax.aot.cost.expert_rows import mean_owners
from k2jax.aot.cost.network import Network
from k2jax.aot.cost.roofline import LINK, CollectiveTime, device_seconds
from k2jax.aot.hlo.collective_ops import collectives
from k2jax.aot.hlo.module import HloModule
from k2jax.aot.hlo.replica_groups import mesh_axes
from k2jax.chips import Chip
from k2jax.config.schema import ModelConfig
from pallas_kernels.expert_exchange.plan import row_groups, sent_rows


class ExchangePart(NamedTuple):
    """What a device exchanges with the experts' ranks at a time.

    Attributes:
        tokens: of the device.
        slots: most rows to one rank, before they are rounded up.
    """

    tokens: int
    slots: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectiveTotal:
    """The collectives of one kind over the same axes, on one device in one step.

    Attributes:
        kind, dtype: as in the program.
        axes: of the mesh, ``data+expert`` for instance.
        count: how often they run.
        bytes: of their arrays; of a ragged exchange those that travel on average.
        seconds: at 80 % of the links.
        exposed: of these, what nothing hides.
    """

    kind: str
    dtype: str
    axes: str
    count: float
    bytes: float
    seconds: float
    exposed: float


class MeasuredCollectives(NamedTuple):
    """All collectives of a program on one device in one step.

    Attributes:
        totals: by kind, axes and dtype, the longest first.
        traffic: the time of every one.
        unknown_loops: loops of unknown length, which are counted as one run.
    """

    totals: list[CollectiveTotal]
    traffic: list[CollectiveTime]
    unknown_loops: int


def measured_collectives(
    module: HloModule, chip: Chip, mesh: Any, model: ModelConfig, part: ExchangePart
) -> MeasuredCollectives:
    """Bytes and time of the collectives of a step, with exchanges of tokens in parts of that size."""
    network = Network.of(chip, list(np.asarray(mesh.devices).flat))
    program, unknown = collectives(module, mesh.size)
    sums: dict[tuple[str, str, str], np.ndarray] = defaultdict(lambda: np.zeros(4))
    traffic = []
    for collective in program:
        ragged = collective.kind == "ragged-all-to-all"
        size = collective.bytes * (payload_share(model, len(collective.groups[0]), part) if ragged else 1.0)
        seconds = network.seconds(collective.kind, collective.groups, size) / LINK
        hidden = collective.asynchronous and device_seconds(chip, collective.flops, 0)[0] >= seconds
        seconds *= collective.count
        time = CollectiveTime(seconds, seconds if hidden else 0.0)
        key = collective.kind, collective.dtype, mesh_axes(collective.groups, list(mesh.shape.items()))
        sums[key] += collective.count, size * collective.count, time.seconds, time.seconds - time.hidden
        traffic.append(time)
    totals = [
        CollectiveTotal(kind=kind, dtype=dtype, axes=axes, count=count, bytes=size, seconds=seconds, exposed=exposed)
        for (kind, dtype, axes), (count, size, seconds, exposed) in ((key, row.tolist()) for key, row in sums.items())
    ]
    return MeasuredCollectives(sorted(totals, key=lambda total: -total.seconds), traffic, unknown)


def payload_share(model: ModelConfig, ranks: int, part: ExchangePart) -> float:
    """Share of a ragged exchange's packed buffer that travels, with uniform routing; the rest is room and padding.

    A token needs a row for each rank that owns one of its experts, as far as there are slots.
    """
    slots = row_groups(part.slots)
    rows = min(ranks * slots, part.tokens * mean_owners(model, ranks))
    return rows / sent_rows(part.tokens, model.moe.active_experts, ranks, slots)
