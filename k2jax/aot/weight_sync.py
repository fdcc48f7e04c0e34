"""The switch between training and rollouts, compiled for a TPU topology: memory in each phase, bytes and seconds.

The programs of the weight sync are compiled once for each kind of bucket, and counted as often as they run. After a
training step the engine's weights are made beside the training state, bucket by bucket; then master weights and
optimizer state go to the hosts' memory for the rollout, and the weights of frozen roles come from there. Before the
next step the engines give their memory back (``Engine.release``), roles' weights go to the hosts, and the state comes.
"""

from __future__ import annotations

from collections import Counter
import dataclasses
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from k2jax.agents.roles import POLICY
from k2jax.aot import compiling
from k2jax.aot.cost.broadcast_cost import BroadcastReport, broadcast_report
from k2jax.aot.cost.hbm import Hbm, shard_bytes
from k2jax.aot.cost.network import Network
from k2jax.aot.cost.roofline import LINK
from k2jax.aot.hlo.collective_ops import collectives
from k2jax.aot.hlo.module import HloModule
from k2jax.aot.program import compile_for_tpu
from k2jax.aot.serving import MODES, ServingReport
from k2jax.aot.topology import chip_of, devices
from k2jax.aot.training import TrainingReport
from k2jax.batch import pack_row
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.losses.registry import make_policy_loss
from k2jax.losses.targets import empty_targets
from k2jax.model import model_specs
from k2jax.params import named_specs
from k2jax.rl.packing.rows import empty_row
from k2jax.rl.packing.training_paths import replayed_routes
from k2jax.rl.sync.weight_sync import BucketKind, bucket_kinds, bucket_program, colocated_mesh, make_buckets
from k2jax.sharding import WHOLE_ROLES, partition_spec
from k2jax.train.program import Program
from pallas_kernels.implementation import target_platform

TURNS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class BucketReport:
    """A program of the weight sync, compiled; bytes and seconds are of one device and one run.

    Attributes:
        weights: names of the weights that it brings over.
        runs: in one push.
        bucket: bytes of the engine's arrays that a run makes.
        temporaries: bytes that it needs beside them.
        wire: bytes of the arrays of its collectives.
        seconds: of its collectives, or of HBM where that takes longer.
        kinds: of its collectives, with their number.
    """

    weights: tuple[str, ...]
    runs: int
    bucket: int
    temporaries: int
    wire: float
    seconds: float
    kinds: dict[str, int]


class EngineReport(NamedTuple):
    """The programs of an engine; their HBM includes the weights and caches of the other engines of a rollout."""

    prefill: ServingReport
    decode: ServingReport


class PhasesReport(NamedTuple):
    """One iteration of reinforcement learning: the programs of each phase, and the switch between them.

    Attributes:
        training: the step.
        switch: from training to the rollout.
        engines: by the role that they answer as, the policy's first.
    """

    training: TrainingReport
    switch: SwitchReport
    engines: dict[str, EngineReport]

    def memory(self) -> dict[str, Hbm]:
        """HBM of a device in every phase, by what is done in it."""
        phases = {
            "training step, the engines' memory given back": self.training.hbm,
            "switch, training state on the devices": self.switch.hbm,
        }
        for role, programs in self.engines.items():
            engine = "" if role == POLICY else f"{role}'s "
            for mode, report in programs._asdict().items():
                phases[f"rollout: {engine}{mode}, training state on the host"] = report.hbm
        return phases

    @property
    def fits(self) -> bool:
        """Whether a device has the memory for every phase."""
        return all(hbm.fits for hbm in self.memory().values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwitchReport:
    """The switch between training and rollouts; everything but ``pushed`` is of one device.

    Attributes:
        topology: such as ``v5p:8x8x16``.
        training, engine: axes and sizes of the two meshes.
        pushed: bytes of all weights in the engine's dtypes, each counted once.
        state: bytes that rest on the host in a rollout: master weights and optimizer state.
        frozen: bytes that rest on the host in training: weights of roles.
        hbm: in the switch, by what it holds.
        host_seconds: of the state's way to the host and that of roles' weights from it, one after the other; the way
            back takes as long.
        buckets: the programs, the longest first.
        broadcast: to engines of other hosts, for engines of a slice of their own.
        compile_seconds: on this machine.
    """

    topology: str
    training: dict[str, int]
    engine: dict[str, int]
    pushed: int
    state: int
    frozen: int
    hbm: Hbm
    host_seconds: float
    buckets: list[BucketReport]
    broadcast: BroadcastReport
    compile_seconds: float

    @property
    def push_seconds(self) -> float:
        """Seconds of all programs of a push."""
        return sum(bucket.runs * bucket.seconds for bucket in self.buckets)

    @property
    def seconds(self) -> float:
        """Seconds from the end of a training step to the first token: state to the host, and weights to the engine."""
        return self.host_seconds + self.push_seconds


def compile_phases(config: Config, topology: str) -> PhasesReport:
    """Compiles the training step, the weight sync, prefill and decode of a config, which all share one slice.

    A role is compiled with the policy's architecture: its checkpoint need not be on this machine.

    Args:
        config: of stage ``rl``, as ``compiling.for_tpu`` returns it.
        topology: the slice.

    Raises:
        UserError: another stage, engines of their own, no such topology, or sizes that do not divide.
        DoesNotFit: a program needs more HBM than there is.
    """
    if config.stage != "rl":
        raise UserError(f"--mode=sync is for a config of stage rl, not {config.stage}; see experiments/rl")
    if config.rl.engines.placement == "separate":
        raise UserError(
            "config.rl.engines.placement separate has no switch: compile the trainer with --mode=train, and an engine "
            "with --mode=decode and --mode=prefill on its own topology"
        )
    rollout = config.rl.rollout
    switch = compile_switch(config, topology)
    length = config.data.sequence_length
    # A row of the policy's targets; more turns and responses in it change its bytes by thousandths.
    routes = empty_row(length, replayed_routes(config)).experts
    row = pack_row([], length).replace(targets=empty_targets(length, TURNS, TURNS), experts=routes)
    training = compiling.compile_training(config, topology, make_policy_loss(config.rl.loss), row)
    engine = dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, expert=rollout.expert))
    slots = {POLICY: rollout.slots, **{name: role.slots for name, role in sorted(config.rl.roles.items())}}
    programs = {
        count: EngineReport(
            *(compiling.compile_inference(engine, mode, topology, rollout.max_length, count) for mode in MODES)
        )
        for count in set(slots.values())
    }
    return PhasesReport(training, switch, _together({name: programs[count] for name, count in slots.items()}))


def _together(engines: dict[str, EngineReport]) -> dict[str, EngineReport]:
    """The same engines, each beside the weights and the caches of the others."""
    kept = {
        f"{role}'s {part}": programs.decode.hbm.parts[part]
        for role, programs in engines.items()
        for part in ("weights", "cache")
    }

    def beside(report: ServingReport, role: str) -> ServingReport:
        others = {name: size for name, size in kept.items() if not name.startswith(f"{role}'s ")}
        return dataclasses.replace(report, hbm=report.hbm._replace(parts=report.hbm.parts | others))

    return {role: EngineReport(*(beside(each, role) for each in programs)) for role, programs in engines.items()}


def compile_switch(config: Config, topology: str) -> SwitchReport:
    """Compiles the programs of a config's weight sync.

    Args:
        config: with ``rl.rollout``, as ``compiling.for_tpu`` returns it.
        topology: whose devices training and engine share.

    Raises:
        UserError: no such topology, or sizes that do not divide.
        DoesNotFit: a program needs more HBM than there is.
    """
    chip, program = chip_of(topology), Program(config, devices(topology))
    mesh = colocated_mesh(program.mesh, config.rl.rollout)
    targets = _targets(config, mesh)
    kinds = bucket_kinds(program.layout, targets.__getitem__)
    state, _ = program.abstract()
    stored = dict(zip(kinds, jax.tree.leaves(state.params), strict=True))
    runs = Counter(bucket.weight for bucket in make_buckets(program.layout))
    groups: dict[Any, list[str]] = {}
    for name, kind in kinds.items():
        groups.setdefault((kind, stored[name].shape), []).append(name)
    began = time.perf_counter()
    network = Network.of(chip, list(program.mesh.devices.flat))
    buckets = [_compiled(kind, stored[names[0]], names, runs, network) for (kind, _), names in groups.items()]
    specs = dict(named_specs(model_specs(config.model)))
    engine_bytes = sum(shard_bytes(targets[name]) * _layers(spec) for name, spec in specs.items())
    largest = max(buckets, key=lambda bucket: bucket.bucket + bucket.temporaries)
    on_host = shard_bytes((state.params, state.opt_state)) + engine_bytes * len(config.rl.roles)
    parts = {
        "master weights": shard_bytes(state.params),
        "optimizer state": shard_bytes(state.opt_state),
        "engine's weights": engine_bytes,
        "largest bucket": largest.bucket,
        "its temporaries": largest.temporaries,
    }
    return SwitchReport(
        topology=topology,
        training=dict(program.mesh.shape),
        engine=dict(mesh.shape),
        pushed=sum(spec.size * targets[name].dtype.itemsize for name, spec in specs.items()),
        state=shard_bytes((state.params, state.opt_state)),
        frozen=engine_bytes * len(config.rl.roles),
        hbm=Hbm(parts, chip.hbm_bytes / chip.devices),
        host_seconds=on_host * chip.devices / chip.host_bandwidth,
        buckets=sorted(buckets, key=lambda bucket: -bucket.runs * bucket.seconds),
        broadcast=broadcast_report(targets, {name: _layers(spec) for name, spec in specs.items()}, mesh, chip),
        compile_seconds=time.perf_counter() - began,
    )


def _targets(config: Config, mesh: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """What the engine holds of every weight: itself, or one layer."""
    targets = {}
    for name, spec in named_specs(model_specs(config.model)):
        layered = spec.axes[0] == "layers"
        placed = partition_spec(name, spec, mesh)
        entries = jax.sharding.PartitionSpec(*placed[1:]) if layered else placed
        dtype = jnp.float32 if spec.role in WHOLE_ROLES else jnp.dtype(config.train.compute_dtype)
        sharding = jax.sharding.NamedSharding(mesh, entries)
        targets[name] = jax.ShapeDtypeStruct(spec.shape[1:] if layered else spec.shape, dtype, sharding=sharding)
    return targets


def _layers(spec: Any) -> int:
    return spec.shape[0] if spec.axes[0] == "layers" else 1


def _compiled(kind: BucketKind, weight: Any, names: list[str], runs: Counter, network: Network) -> BucketReport:
    count = weight.shape[1] if kind.layer_axes > 1 else 1
    seeds = jax.ShapeDtypeStruct((count,), jnp.uint32)
    index = [jax.ShapeDtypeStruct((), jnp.int32)] * {0: 0, 1: 1}.get(kind.layer_axes, 2)
    with target_platform("tpu"):
        traced = bucket_program(kind).trace(weight, seeds, *index)
    compiled, _ = compile_for_tpu(traced)
    memory = compiled.memory_analysis()
    listed, _ = collectives(HloModule(compiled.as_text()), kind.stored.mesh.size)
    seconds = sum(each.count * network.seconds(each.kind, each.groups, each.bytes) / LINK for each in listed)
    moved = memory.output_size_in_bytes + 2 * memory.temp_size_in_bytes  # read and written at least once
    chip = network.chip
    return BucketReport(
        weights=tuple(names),
        runs=sum(runs[name] for name in names),
        bucket=memory.output_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        wire=sum(each.bytes * each.count for each in listed),
        seconds=max(seconds, chip.seconds(0.0, moved)[1]),
        kinds=dict(Counter(each.kind for each in listed)),
    )
