"""A training step, compiled for an absent TPU: what it takes of the memory, sends over the links, and how long."""

from __future__ import annotations

from collections import defaultdict
import math
import time
from typing import Any, NamedTuple

from k2jax.analysis.chips import chip_of
from k2jax.analysis.collectives import collectives
from k2jax.analysis.counts import Counts, Known, count, ticks
from k2jax.analysis.hbm import Hbm, hbm, kept, shard_bytes
from k2jax.analysis.hlo import Program
from k2jax.analysis.layer_costs import room_for_copies
from k2jax.analysis.roofline import Roofline, Work, model_flops_per_token, roofline
from k2jax.analysis.traffic import Moved, Part, sent_in, tabulated
from k2jax.cluster.run import XLA_OPTIONS
from k2jax.config.schema import Config
from k2jax.parallel.mesh import TOKEN_AXES, rows_per_micro_batch

# As k2jax.launch sets them: exchanges of tokens may run beside products.
COMPILER_OPTIONS = dict(option.removeprefix("--").split("=") for option in XLA_OPTIONS)


class Step(NamedTuple):
    """A training step that is traced but not compiled.

    Attributes:
        traced: jax.stages.Traced.
        mesh: of its devices.
        state: what it is given and gives back changed: ShapeDtypeStructs with shardings, ``params`` among them.
        schedule: the pipeline's table, or None.
        empty: bytes of a device in slots of the pipeline that hold no layer.
    """

    traced: Any
    mesh: Any
    state: Any
    schedule: Any
    empty: float


class Training(NamedTuple):
    """A compiled step; everything but ``tokens`` is of one device.

    Attributes:
        topology: such as ``v5p:8x8x16``.
        mesh: axes and their sizes.
        tokens: of a step, over all devices.
        compile_seconds: of lowering and compiling, on this machine.
        hbm: by what it holds.
        collectives: the longest first.
        counts: FLOPs and bytes of a step, from the traced program.
        compiled_flops: of products and kernels, from the compiled one.
        bubble: share of the time that pipeline stages idle, and with it waste; 0 without stages.
        roofline: the estimate.
        notes: what to know about these numbers.
    """

    topology: str
    mesh: dict[str, int]
    tokens: int
    compile_seconds: float
    hbm: Hbm
    collectives: list[Moved]
    counts: Counts
    compiled_flops: int
    bubble: float
    roofline: Roofline
    notes: list[str]


def analyse(step: Step, config: Config, topology: str) -> Training:
    """Compiles a training step and reads off what it takes.

    Args:
        step: traced for the devices of the topology.
        config: the experiment.
        topology: whose devices the mesh has.

    Raises:
        jax.errors.JaxRuntimeError: the program needs more HBM than there is.
    """
    began = time.perf_counter()
    compiled = step.traced.lower(lowering_platforms=("tpu",)).compile(compiler_options=COMPILER_OPTIONS)
    seconds = time.perf_counter() - began
    chip, mesh = chip_of(topology), step.mesh
    known = known_of(step, config)
    jaxpr, text = step.traced.jaxpr.jaxpr, Program(compiled.as_text(), known)
    found, unknown = collectives(text, mesh.size)
    sent = sent_in(found, chip, mesh, config.model, exchanged_part(config, mesh))
    tokens = config.train.batch_size * config.data.sequence_length
    model_flops = tokens * model_flops_per_token(config.model, config.data.sequence_length)
    traffic = [one for _, one in sent]
    return Training(
        topology,
        dict(mesh.shape),
        tokens,
        seconds,
        hbm(chip, compiled.memory_analysis(), step.state.params, step.state, kept(jaxpr), step.empty),
        tabulated(found, sent, mesh),
        count(jaxpr, mesh.size, known),
        text.flops(text.entry),
        step.schedule.bubble() if step.schedule else 0.0,
        roofline(chip, mesh.size, *_work(jaxpr, mesh.size, known, step.state), traffic, model_flops),
        [f"{unknown} loops of unknown length were counted once"] if unknown else [],
    )


def known_of(step: Step, config: Config) -> Known:
    """What the compiled step does not say: how often ticks branch, and how many of the experts' rows are in use.

    Kernels declare all copies that there is room for, and have the mean if all ranks have as many.
    """
    return Known(taken_branches(step.schedule), 1 / room_for_copies(config, step.mesh.shape.get("expert", 1)))


def exchanged_part(config: Config, mesh: Any) -> Part:
    """What a device of the mesh exchanges at once: a chunk of its tokens of a micro-batch."""
    tokens = rows_per_micro_batch(config, mesh) * config.data.sequence_length
    devices = math.prod(mesh.shape.get(axis, 1) for axis in TOKEN_AXES)
    tokens = -(-tokens // (devices * config.parallel.expert_chunks))
    return Part(tokens, math.ceil(config.parallel.expert_slots * tokens))


def taken_branches(schedule: Any) -> dict[int, float]:
    """Share of the ticks of a pipeline's phase, by its length, that have an entrance, an exit, an entrance's gradient.

    All stages branch there alike, in phases of ticks that have such a branch at all.
    """
    if schedule is None:
        return {}
    shares = defaultdict(list)
    for phase in schedule.phases():
        occurring = (("entrance", phase.forward), ("exit", phase.exit), ("unembed", phase.backward))
        columns = [getattr(schedule, name)[phase.ticks] for name, occurs in occurring if occurs]
        shares[phase.ticks.stop - phase.ticks.start] += [float((column >= 0).mean()) for column in columns]
    return {length: sum(found) / len(found) for length, found in shares.items()}


def _work(jaxpr: Any, devices: int, known: Known, state: Any) -> tuple[list[Work], Work]:
    """Ticks, and the optimizer: it reads and writes all state, and reads gradients as large as the parameters."""
    parts = ticks(jaxpr, devices, known)
    step = [Work(one.times, one.counts.flops, one.counts.bytes) for one in parts if not one.optimizer]
    rule = sum((one.counts.times(one.times) for one in parts if one.optimizer), Counts())
    return step, Work(1, rule.flops, rule.bytes + 2 * shard_bytes(state) + shard_bytes(state.params))
