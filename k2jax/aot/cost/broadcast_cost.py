"""Time in which engines on hosts of their own have a version of the weights, from bytes and bandwidths alone.

Trainer and engines are taken to be slices of the same size, and the weights to lie in both as the policy's engine has
them: experts over ``expert``, everything else whole on every device, and all of it once for each group of ``data``. See
``k2jax/rl/broadcast``. Stages run at the same time, so the longest decides, and what the first chunk takes to pass a
chain comes on top. Every bandwidth is the whole of it: nothing was measured on these hosts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jax.sharding import Mesh

from k2jax.aot.cost.hbm import shard_bytes
from k2jax.chips import Chip
from k2jax.rl.broadcast.pieces import CHUNK


@dataclasses.dataclass(frozen=True, kw_only=True)
class BroadcastWay:
    """One way of bringing the weights to the engines; bytes and seconds are those of the busiest host.

    Attributes:
        what: each host receives.
        sent: bytes out of a host of the trainer.
        received: bytes into a host of an engine, which it sends on to the next.
        chain: hosts that take them one from the other.
        to_host: seconds from the trainer's devices to its hosts.
        network: seconds of what is received, or of what is sent where that takes longer.
        to_device: seconds from the engine's hosts to its devices.
        latency: seconds of a chunk through the chain.
    """

    what: str
    sent: float
    received: float
    chain: int
    to_host: float
    network: float
    to_device: float
    latency: float

    @property
    def seconds(self) -> float:
        """Of all stages at the same time."""
        return max(self.to_host, self.network, self.to_device) + self.latency

    @property
    def apart(self) -> float:
        """Of the stages one after the other."""
        return self.to_host + self.network + self.to_device + self.latency


@dataclasses.dataclass(frozen=True, kw_only=True)
class BroadcastReport:
    """What a broadcast takes.

    Attributes:
        hosts: of the trainer, and of the engines.
        host_network: of a host, in one direction [bytes/s].
        ways: the full set to every host, and to every host what its devices hold.
    """

    hosts: int
    host_network: float
    ways: tuple[BroadcastWay, ...]


def broadcast_report(targets: dict[str, Any], layers: dict[str, int], mesh: Mesh, chip: Chip) -> BroadcastReport:
    """The estimate for an engine's weights.

    Args:
        targets: of every weight or a layer of it, with shardings on the engine's mesh.
        layers: of every weight, 1 where it has none.
        mesh: of the engine.
        chip: of both slices.
    """
    shared = whole = total = 0.0
    for name, target in targets.items():
        size, held = target.size * target.dtype.itemsize * layers[name], shard_bytes(target) * layers[name]
        total += size
        if held < size:
            shared += held
        else:
            whole += held
    on_host = min(chip.host_chips * chip.devices, mesh.size)
    hosts, replicas = mesh.size // on_host, mesh.shape["data"]
    network = chip.network_bandwidth * chip.host_chips
    # Experts of every device of a chip, and what is whole from one of them.
    to_host = (shared * chip.devices + whole) / chip.host_bandwidth
    to_device = (shared + whole) * chip.devices / chip.host_bandwidth
    groups = max(1, hosts // replicas)

    def way(what: str, sent: float, received: float, chain: int) -> BroadcastWay:
        return BroadcastWay(
            what=what,
            sent=sent,
            received=received,
            chain=chain,
            to_host=to_host,
            network=max(sent, received) / network,
            to_device=to_device,
            latency=chain * CHUNK / network,
        )

    own = min(total, shared * on_host + whole)
    chain = hosts // groups
    return BroadcastReport(
        hosts=hosts,
        host_network=network,
        ways=(way("the full set", total / hosts, total, hosts), way("its shard", groups * own / hosts, own, chain)),
    )
