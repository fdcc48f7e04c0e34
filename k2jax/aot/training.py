"""A training step, compiled for a TPU topology: its memory, its collectives, and an estimate of its time."""

from __future__ import annotations

from collections import defaultdict
import dataclasses
import math
from typing import Any, NamedTuple

from k2jax.aot.cost.expert_rows import expert_tiles, room_for_copies
from k2jax.aot.cost.hbm import hbm, loop_buffers, shard_bytes
from k2jax.aot.cost.jaxpr_flops import DynamicShares, LoopCost, TracedCost, loop_costs, traced_cost
from k2jax.aot.cost.roofline import Work, model_flops_per_token, roofline
from k2jax.aot.cost.tower_cost import TowerShare, tower_share
from k2jax.aot.hlo.measured_collectives import ExchangePart, measured_collectives
from k2jax.aot.hlo.module import HloModule
from k2jax.aot.program import ProgramReport, compile_for_tpu
from k2jax.aot.topology import chip_of
from k2jax.batch import PatchBatch
from k2jax.config.schema import Config
from k2jax.parallel.mesh import TOKEN_AXES, rows_per_micro_batch


class TracedStep(NamedTuple):
    """A training step that is traced but not compiled.

    Attributes:
        traced: jax.stages.Traced.
        mesh: of its devices.
        state: what it takes and returns changed: ShapeDtypeStructs with shardings, ``params`` among them.
        schedule: the pipeline's table, or None.
        empty: bytes of a device in pipeline slots without a layer.
        patches: of the batch's images, ShapeDtypeStructs; None without vision.
    """

    traced: Any
    mesh: Any
    state: Any
    schedule: Any
    empty: float
    patches: PatchBatch | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingReport(ProgramReport):
    """A compiled step.

    Attributes:
        counts: FLOPs and bytes of a step, from the traced program.
        compiled_flops: of products and kernels, from the compiled program.
        bubble: share of the time that pipeline stages idle; 0 without stages.
        tower: what tower and projector take of it; None without vision.
    """

    counts: TracedCost
    compiled_flops: int
    bubble: float
    tower: TowerShare | None = None


def analyse(step: TracedStep, config: Config, topology: str) -> TrainingReport:
    """Compiles a training step and reports what it takes.

    Args:
        step: traced for the devices of the topology.
        config: the experiment.
        topology: whose devices the mesh has.

    Raises:
        DoesNotFit: the compiler found too little HBM.
    """
    compiled, seconds = compile_for_tpu(step.traced)
    chip, mesh, shares = chip_of(topology), step.mesh, dynamic_shares(step, config)
    jaxpr, module = step.traced.jaxpr.jaxpr, HloModule(compiled.as_text(), shares)
    measured = measured_collectives(module, chip, mesh, config.model, exchange_part(config, mesh))
    tokens = config.train.batch_size * config.data.sequence_length
    model_flops = tokens * model_flops_per_token(config.model, config.data.sequence_length)
    loops = loop_costs(jaxpr, mesh.size, shares)
    return TrainingReport(
        topology=topology,
        mesh=dict(mesh.shape),
        tokens=tokens,
        compile_seconds=seconds,
        hbm=hbm(chip, compiled.memory_analysis(), step.state.params, step.state, loop_buffers(jaxpr), step.empty),
        collectives=measured.totals,
        counts=traced_cost(jaxpr, mesh.size, shares),
        compiled_flops=module.flops(module.entry),
        bubble=step.schedule.bubble() if step.schedule else 0.0,
        roofline=roofline(chip, mesh.size, *_work(loops, step.state), measured.traffic, model_flops),
        notes=[f"{measured.unknown_loops} loops of unknown length were counted once"] * bool(measured.unknown_loops),
        tower=step.patches and tower_share(config, chip, mesh, step.state.params, step.patches, loops),
    )


def dynamic_shares(step: TracedStep, config: Config) -> DynamicShares:
    """Shares that the compiled step does not tell: ticks that branch, and rows of the experts that are in use.

    Kernels declare all copies that there is room for. The mean is in use if all ranks have equally many, and with it
    the rest of the sub-blocks in which the rows of two experts meet is computed.
    """
    ranks = step.mesh.shape.get("expert", 1)
    computed = 1.0
    if config.model.layers > config.model.dense_layers:
        tiles = expert_tiles(config, _device_tokens(config, step.mesh), ranks)
        computed = tiles.computed / tiles.rows
    return DynamicShares(branch_shares(step.schedule), 1 / room_for_copies(config, ranks), computed)


def exchange_part(config: Config, mesh: Any) -> ExchangePart:
    """What a device of the mesh exchanges at a time: one part of its tokens of a micro-batch."""
    tokens = -(-_device_tokens(config, mesh) // config.parallel.expert_chunks)
    return ExchangePart(tokens, math.ceil(config.parallel.expert_slots * tokens))


def _device_tokens(config: Config, mesh: Any) -> int:
    """Tokens of a micro-batch on one device."""
    devices = math.prod(mesh.shape.get(axis, 1) for axis in TOKEN_AXES)
    return -(-rows_per_micro_batch(config, mesh) * config.data.sequence_length // devices)


def branch_shares(schedule: Any) -> dict[int, float]:
    """Share of the ticks of a pipeline's phase, by its length, that embed, compute a loss, or embed backward.

    All stages branch there alike, in phases of ticks that have such a branch at all.
    """
    if schedule is None:
        return {}
    shares = defaultdict(list)
    for phase in schedule.phases():
        occurring = (("embed", phase.forward), ("loss", phase.loss), ("embed_backward", phase.backward))
        columns = [getattr(schedule, name)[phase.ticks] for name, occurs in occurring if occurs]
        shares[phase.ticks.stop - phase.ticks.start] += [float((column >= 0).mean()) for column in columns]
    return {length: sum(values) / len(values) for length, values in shares.items()}


def _work(loops: list[LoopCost], state: Any) -> tuple[list[Work], Work]:
    """Ticks, and the optimizer, which reads and writes all state and reads gradients as large as the parameters."""
    ticks = [
        Work(loop.times, loop.cost.flops, loop.cost.bytes, loop.cost.host_bytes) for loop in loops if not loop.optimizer
    ]
    update = sum((loop.cost.times(loop.times) for loop in loops if loop.optimizer), TracedCost())
    return ticks, Work(1, update.flops, update.bytes + 2 * shard_bytes(state) + shard_bytes(state.params))
