"""What the loss of a host costs a run: noticing it, starting again, weights and state, and work that is done twice.

Formulas alone: nothing was lost or measured on a pod. Of every figure that is neither the project's own nor follows
from the config, ``CONSTANTS`` says where it comes from, or that it is assumed.

- The loss of a **trainer's host** ends the run's training processes. All of them start again, read the newest
  checkpoint and repeat the steps since: half an interval between checkpoints in the mean. The sampler ``workers`` has
  complete groups on disk, so that of its rollouts only the episodes under way are repeated, half an episode each.
- The loss of an **engine's host** ends that engine. It starts again, with its other hosts, and is sent the weights; the
  trainer and the other engines go on, and these continue its answers behind the tokens that it had reported.
- The loss of a **worker** ends its episodes, which begin again elsewhere: half an episode in the mean.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import NamedTuple

from k2jax.agents.collect.wire import MACHINE_SECONDS
from k2jax.errors import UserError, nearest
from k2jax.processes import HEARTBEAT_SECONDS
from k2jax.processes.group import LEAVE_SECONDS, POLL_SECONDS
from k2jax.rl.engines.engine_pool import SILENT_SECONDS

DAY = 24 * 3600.0
ASSUMED = "assumed"


class Constant(NamedTuple):
    """A figure of the arithmetic.

    Attributes:
        value: as a number.
        unit: of it.
        meaning: what it is.
        source: where it comes from, or that it is assumed.
    """

    value: float
    unit: str
    meaning: str
    source: str


CONSTANTS = {
    "heartbeat": Constant(
        HEARTBEAT_SECONDS, "s", "silence after which a process is lost", "k2jax.processes.HEARTBEAT_SECONDS"
    ),
    "poll": Constant(POLL_SECONDS, "s", "between two questions who is alive", "k2jax.processes.group.POLL_SECONDS"),
    "leave": Constant(
        LEAVE_SECONDS, "s", "process 0 waits for the others to end", "k2jax.processes.group.LEAVE_SECONDS"
    ),
    "engine": Constant(
        SILENT_SECONDS, "s", "silence after which an engine is lost", "k2jax.rl.engines.engine_pool.SILENT_SECONDS"
    ),
    "worker": Constant(
        MACHINE_SECONDS, "s", "silence after which a worker is lost", "k2jax.agents.collect.wire.MACHINE_SECONDS"
    ),
    "node": Constant(300.0, "s", "until there is a node in the lost one's place; 0 with a spare one", ASSUMED),
    "pods": Constant(60.0, "s", "deleting, scheduling and starting pods, the image on the nodes", ASSUMED),
    "process": Constant(60.0, "s", "imports, the TPU, and all processes connected", ASSUMED),
    "compile": Constant(60.0, "s", "reading compiled programs from the cache in the workdir", ASSUMED),
    "host_read": Constant(1e9, "bytes/s", "a host reads from the bucket", ASSUMED),
    "bucket_read": Constant(25e9, "bytes/s", "all hosts read from the bucket: 200 Gbit/s", ASSUMED),
    "host_network": Constant(1e9, "bytes/s", "an engine's host receives weights", ASSUMED),
    "episode": Constant(600.0, "s", "an episode takes, in the mean", ASSUMED),
    "host_mtbf": Constant(
        6300.0,
        "h",
        "between two losses of a host, in the mean",
        "assumed; Llama 3's 16,384 GPUs in 2,048 hosts: 419 losses in 54 days (arXiv:2407.21783, section 3.3.4)",
    ),
}


def with_assumptions(words: list[str]) -> dict[str, Constant]:
    """``CONSTANTS`` with the values of ``NAME=VALUE`` words in their place.

    Raises:
        UserError: a word names no constant, or its value is no number that it may have.
    """
    constants = dict(CONSTANTS)
    for word in words:
        name, _, text = word.partition("=")
        if name not in constants:
            raise UserError(f"--assume {word!r} names no constant{nearest(name, list(constants))}")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        unit = constants[name].unit
        if not (0 <= value < float("inf")) or (value == 0 and unit != "s"):
            raise UserError(f"--assume {word!r} needs a number [{unit}], as in {name}={CONSTANTS[name].value:g}")
        constants[name] = constants[name]._replace(value=value, source="--assume")
    return constants


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunShape:
    """What of a run decides what a loss costs.

    Attributes:
        trainer_hosts: of the slices that train.
        state_bytes: of a trainer's host, parameters and optimizer state.
        host_bandwidth: between a host and its chips, in one direction [bytes/s].
        training_seconds: of a step as checkpoints count them; in reinforcement learning of all updates of an iteration.
        rollout_seconds: of an iteration beside its training.
        groups_kept: whether complete groups outlive the run's processes.
        interval: steps between two checkpoints.
        engines: their number; 0 where the engine shares the trainer's chips.
        engine_hosts: of one engine.
        weight_bytes: of all weights that an engine holds.
        workers: machines that run episodes.
    """

    trainer_hosts: int
    state_bytes: float
    host_bandwidth: float
    training_seconds: float
    rollout_seconds: float = 0.0
    groups_kept: bool = False
    interval: int
    engines: int = 0
    engine_hosts: int = 1
    weight_bytes: float = 0.0
    workers: int = 0

    def repeated_seconds(self, episode: float) -> float:
        """Work of the trainer's loss that is done twice, in the mean, with episodes of so many seconds [s]."""
        kept = self.interval / 2 * self.training_seconds
        return kept + (episode / 2 if self.groups_kept else self.interval / 2 * self.rollout_seconds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostLoss:
    """One kind of loss; all times in seconds.

    Attributes:
        what: is lost.
        hosts: that can be lost so.
        stops: what stands still meanwhile.
        units: how many of those there are.
        detection: until it is noticed.
        restart: until the programs are ready again, on another node.
        restore: of state or weights.
        repeated: work that is done twice, in the mean.
        per_day: losses in a day, in the mean.
    """

    what: str
    hosts: int
    stops: str
    units: int
    detection: float
    restart: float
    restore: float
    repeated: float
    per_day: float

    @property
    def seconds(self) -> float:
        """Time without progress of what stands still."""
        return self.detection + self.restart + self.restore + self.repeated

    @property
    def share(self) -> float:
        """Share of the time of all such units that is lost, in the mean; losses may not overlap, so it can pass 1."""
        return self.per_day * self.seconds / (DAY * self.units)


def host_losses(shape: RunShape, constants: Mapping[str, Constant] = CONSTANTS) -> list[HostLoss]:
    """What each kind of loss costs: a host of the trainer, of an engine, and a worker."""
    value = {name: constant.value for name, constant in constants.items()}
    rate = 24.0 / value["host_mtbf"]
    begun = value["node"] + value["pods"] + value["process"]
    trainer = HostLoss(
        what="a trainer's host",
        hosts=shape.trainer_hosts,
        stops="the training",
        units=1,
        detection=value["heartbeat"] + value["poll"],
        restart=value["leave"] + begun + value["compile"],
        restore=restore_seconds(shape, value["host_read"], value["bucket_read"]),
        repeated=shape.repeated_seconds(value["episode"]),
        per_day=shape.trainer_hosts * rate,
    )
    engine = HostLoss(
        what="an engine's host",
        hosts=shape.engines * shape.engine_hosts,
        stops=f"1 of {shape.engines} engines",
        units=shape.engines,
        detection=value["engine"],
        restart=begun + value["compile"],
        restore=shape.weight_bytes / shape.engine_hosts * (1 / value["host_network"] + 1 / shape.host_bandwidth),
        repeated=0.0,
        per_day=shape.engines * shape.engine_hosts * rate,
    )
    worker = HostLoss(
        what="a worker",
        hosts=shape.workers,
        stops=f"1 of {shape.workers} workers",
        units=shape.workers,
        detection=value["worker"],
        restart=begun,
        restore=0.0,
        repeated=value["episode"] / 2,
        per_day=shape.workers * rate,
    )
    return [loss for loss in (trainer, engine, worker) if loss.hosts]


def restore_seconds(shape: RunShape, host_read: float, bucket_read: float) -> float:
    """Reading the checkpoint, bound by each host or by the bucket, and bringing it to the chips [s]."""
    read = max(shape.state_bytes / host_read, shape.trainer_hosts * shape.state_bytes / bucket_read)
    return read + shape.state_bytes / shape.host_bandwidth
