"""Compiles a config for a topology by its name, or finds the best layouts there; mistakes get one line."""

from __future__ import annotations

import dataclasses
import math

from k2jax import runtime
from k2jax.aot.cost.device_bytes import empty_slots
from k2jax.aot.cost.sweep import Candidate, sweep
from k2jax.aot.program import DoesNotFit
from k2jax.aot.serving import ServingReport, compile_serving
from k2jax.aot.topology import chip_of, devices
from k2jax.aot.training import TracedStep, TrainingReport, analyse
from k2jax.batch import PackedBatch
from k2jax.config.replace import replace_keys
from k2jax.config.schema import Config, ModelConfig
from k2jax.errors import UserError
from k2jax.losses import Loss
from k2jax.sharding import CONTEXT, TENSOR
from k2jax.train.program import Program
from pallas_kernels.implementation import target_platform


def for_tpu(config: Config) -> Config:
    """The config with the dtypes that ``auto`` means on a TPU.

    Raises:
        UserError: it asks for kernels that do not take the model's widths.
    """
    runtime.check_widths(config.model)
    return replace_keys(config, {"train.compute_dtype": "bfloat16"}) if config.train.compute_dtype == "auto" else config


def best_layouts(config: Config, topology: str) -> list[Candidate]:
    """Layouts that fit by estimate, the fastest first.

    Raises:
        UserError: no such topology, or nothing fits.
    """
    return sweep(config, chip_of(topology), devices(topology))


def compile_training(
    config: Config, topology: str, loss: Loss | None = None, row: PackedBatch | None = None
) -> TrainingReport:
    """Compiles the training step of a config.

    Args:
        config: the experiment.
        topology: its devices.
        loss: by default that of pretraining.
        row: a row whose targets are those of the loss.

    Raises:
        UserError: no such topology, or a layout whose sizes do not divide.
        DoesNotFit: the compiler found too little HBM.
    """
    report = analyse(traced_step(config, topology, loss, row), config, topology)
    return dataclasses.replace(report, notes=[*report.notes, *without_kernels(config.model, config.parallel.tensor)])


def attempt_training(config: Config, topology: str) -> tuple[TrainingReport | None, str]:
    """The compiled step, if the compiler came through, and what it needs, if that is more HBM than there is.

    Raises:
        UserError: as ``compile_training``.
    """
    try:
        report = compile_training(config, topology)
    except DoesNotFit as error:
        return None, error.needs
    return report, "" if report.hbm.fits else report.hbm.needs


def compile_inference(config: Config, mode: str, topology: str, context: int, slots: int) -> ServingReport:
    """Compiles a program of the inference engine for a config's model; see ``serving.compile_serving``.

    Raises:
        UserError: no such topology, or sizes that do not divide.
        DoesNotFit: the compiler found too little HBM.
    """
    report = compile_serving(config.model, mode, topology, expert=config.parallel.expert, context=context, slots=slots)
    return dataclasses.replace(report, notes=without_kernels(config.model))


def without_kernels(model: ModelConfig, shards: int = 1) -> list[str]:
    """A note where ``auto`` means plain JAX on a TPU too; the experts' hidden width is cut into ``shards``."""
    if model.kernels != "auto" or runtime.kernels_take(model, shards):
        return []
    width = f"{model.moe.expert_ffn} over {shards} devices" if shards > 1 else model.moe.expert_ffn
    return [
        f"the experts are compiled as plain JAX, as auto has it on a TPU: their kernels "
        f"{runtime.kernel_widths()}, not {model.d_model} and {width}"
    ]


def traced_step(config: Config, topology: str, loss: Loss | None = None, row: PackedBatch | None = None) -> TracedStep:
    """The training step of a config on a topology's devices, traced; arguments as of ``compile_training``.

    Raises:
        UserError: no such topology, or a layout whose sizes do not divide.
    """
    program = Program(config, devices(topology), loss)
    state, batch = program.abstract(row)
    with target_platform("tpu"):
        traced = program.step.trace(state, batch)
    return TracedStep(traced, program.mesh, state, program.schedule, empty_slots(config, program.layout), batch.patches)


def too_large(config: Config, topology: str, needs: str) -> str:
    """One line: what the step needs, and of the layouts that fit by estimate the one that changes least.

    No layout is proposed that takes as much as the refused one by the same estimate. A sweep estimates neither
    ``context`` nor ``tensor``: both are 1 in what is proposed.
    """
    shared = [axis for axis in (CONTEXT, TENSOR) if getattr(config.parallel, axis) > 1]
    parallel = dataclasses.replace(config.parallel, **dict.fromkeys(shared, 1))
    try:
        fitting = best_layouts(dataclasses.replace(config, parallel=parallel), topology)
    except UserError as error:
        return f"the step does not fit: it needs {needs}; {error}"
    least = min((_bytes(layout) for layout in fitting if not _distance(layout.config, config)), default=math.inf)
    smaller = [layout for layout in fitting if _bytes(layout) < least]
    if not smaller:
        return f"the step does not fit: it needs {needs}; by estimate no layout needs less: take more devices"
    nearest = min(smaller, key=lambda layout: _distance(layout.config, config))
    flags = " ".join([nearest.flags, *(f"--config.parallel.{axis}=1" for axis in shared)])
    return f"the step does not fit: it needs {needs}; by estimate this fits: {flags}"


def inference_too_large(mode: str, needs: str) -> str:
    """One line: what a program of the engine needs, and which sizes to change."""
    return f"{mode} does not fit: it needs {needs}; raise config.parallel.expert, or lower --slots or --context"


def _bytes(layout: Candidate) -> float:
    return layout.estimate.hbm.total


def _distance(layout: Config, other: Config) -> float:
    """How differently two layouts cut a model, in doublings; a change of recomputation counts as one. 0 is the same."""
    keys = ("stage", "virtual_stages", "expert", "expert_chunks", CONTEXT, TENSOR)
    sizes = [(getattr(layout.parallel, key), getattr(other.parallel, key)) for key in keys]
    sizes.append((layout.train.micro_batches, other.train.micro_batches))
    keys = ("remat", "store_fp8", "offload", "keep_across")
    policies = [(getattr(layout.train, key), getattr(other.train, key)) for key in keys]
    return sum(abs(math.log2(a / b)) for a, b in sizes) + sum(a != b for a, b in policies)
