"""Collectives of a compiled program as time on the network of its devices."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from k2jax.analysis.chips import Chip
from k2jax.analysis.collectives import Collective
from k2jax.analysis.groups import mesh_axes
from k2jax.analysis.layer_costs import owners
from k2jax.analysis.network import Network
from k2jax.analysis.roofline import LINK, Traffic, device_seconds
from k2jax.config.schema import ModelConfig
from pallas_kernels.expert_exchange.plan import row_groups, sent_rows


class Part(NamedTuple):
    """What a device exchanges with the experts' ranks at once.

    Attributes:
        tokens: of the device.
        slots: most rows to one rank, before they are rounded up.
    """

    tokens: int
    slots: int


class Moved(NamedTuple):
    """The collectives of one kind over the same axes, of one device and step.

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
    count: int
    bytes: float
    seconds: float
    exposed: float


def sent_in(
    found: list[Collective], chip: Chip, mesh: Any, model: ModelConfig, part: Part
) -> list[tuple[float, Traffic]]:
    """Bytes and time of every collective in a step, whose exchanges of tokens are of such parts."""
    network = Network.of(chip, list(np.asarray(mesh.devices).flat))
    sent = []
    for one in found:
        ragged = one.kind == "ragged-all-to-all"
        size = one.bytes * (travelling(model, len(one.groups[0]), part) if ragged else 1.0)
        seconds = network.seconds(one.kind, one.groups, size) / LINK
        hidden = one.asynchronous and device_seconds(chip, one.flops, 0)[0] >= seconds
        sent.append((size * one.count, Traffic(seconds * one.count, hidden)))
    return sent


def travelling(model: ModelConfig, ranks: int, part: Part) -> float:
    """Share of a ragged exchange's packed buffer that travels, with uniform routing; the rest is room and padding.

    A token needs a row for each rank that owns one of its experts, as far as there are slots.
    """
    slots = row_groups(part.slots)
    rows = min(ranks * slots, part.tokens * owners(model, ranks))
    return rows / sent_rows(part.tokens, model.active_experts, ranks, slots)


def tabulated(found: list[Collective], sent: list[tuple[float, Traffic]], mesh: Any) -> list[Moved]:
    """Sums by kind, axes and dtype, the longest first."""
    rows: dict[tuple[str, str, str], list] = defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    for one, (size, traffic) in zip(found, sent, strict=True):
        row = rows[one.kind, one.dtype, mesh_axes(one.groups, list(mesh.shape.items()))]
        exposed = 0.0 if traffic.hidden else traffic.seconds
        for at, value in enumerate((one.count, size, traffic.seconds, exposed)):
            row[at] += value
    table = [Moved(*key, *values) for key, values in rows.items()]
    return sorted(table, key=lambda row: -row.seconds)
