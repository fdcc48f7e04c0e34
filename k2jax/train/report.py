"""What a run says about itself: the lines at its start, the plots and ``report.md``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import jax

from k2jax import optim
from k2jax.chips import PEAK_FLOPS
from k2jax.config.phases import run_phases
from k2jax.config.schema import Config
from k2jax.data import TrainingData
from k2jax.data.manifest import ASSISTANT
from k2jax.model import active_parameters, model_specs, total_parameters
from k2jax.model.vision import multimodal_specs, vision_specs
from k2jax.params import count
from k2jax.report.markdown import write_report
from k2jax.report.plots import draw_plots
from k2jax.report.summary import NO_BASELINES, Baselines, DataSource, RunSummary
from k2jax.report.table import percent, quantity, text_table
from k2jax.runtime import device_name

if TYPE_CHECKING:
    from k2jax.train.run import Run

PHASE_HEADER = ("phase", "steps", "tokens", "rows x tokens", "mixture", "last rate", "other keys")
_SHOWN_APART = ("data.sequence_length=", "train.batch_size=")
PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "grain")


def newton_schulz_share(config: Config) -> float | None:
    """FLOPs of Newton-Schulz over those of training the same matrices at this batch size; None without Muon."""
    if config.optimizer.name == "adamw":
        return None
    return optim.newton_schulz_share(
        model_specs(config.model), config, config.train.batch_size * config.data.sequence_length
    )


def print_start(config: Config, data: TrainingData, start: int) -> None:
    """Prints the model's size, the table of weights and their optimizer groups, and the data."""
    rows = optim.group_table(multimodal_specs(config.model), config.optimizer)
    print(text_table(("weight", "shape", "optimizer", "decay"), [[str(cell) for cell in row] for row in rows]))
    total, active = total_parameters(config.model), active_parameters(config.model)
    print(f"{quantity(total)} parameters, {quantity(active)} active per token, on {device_name()}")
    if config.model.vision.layers:
        print(f"{quantity(count(vision_specs(config.model)))} more in the tower and the projector")
    share = newton_schulz_share(config)
    if share is not None:
        print(
            f"Newton-Schulz costs {percent(share)} of the training FLOPs of its matrices at "
            f"{config.train.batch_size * config.data.sequence_length:,} tokens a step"
        )
    for name, epochs in data.loader.epochs(config.train.steps).items():
        train = data.manifests[name]["splits"]["train"]
        written = f", {quantity(train[ASSISTANT])} of them the assistant's" if ASSISTANT in train else ""
        print(f"data {name}: {quantity(train['tokens'])} tokens{written}, {epochs:.2f} epochs over the run")
    if config.phases:
        print(text_table(PHASE_HEADER, phase_rows(config)))
        later = [
            f"{name} at {phase.begin:,}" for name, phase in config.phases.items() if phase.begin >= config.train.steps
        ]
        if later:
            print(f"the run ends before phases begin: {', '.join(later)}")
    if start == 0:
        print("compiling; the first step takes a while")


def phase_rows(config: Config) -> list[tuple[str, ...]]:
    """What each phase of a run does, in words, by the columns of ``PHASE_HEADER``; none without phases."""
    rate = optim.learning_rate(config.optimizer, config.train.steps, config.phases)
    rows = []
    for phase in run_phases(config) if config.phases else ():
        own, declared = phase.config, config.phases[phase.name]
        size = f"{own.train.batch_size:,} x {own.data.sequence_length:,}"
        mixture = ", ".join(declared.mixture) or "all"
        ends = f"{float(rate(phase.last - 1)):.3g}"
        steps = f"{phase.first + 1:,} to {phase.last:,}"
        others = [text for text in declared.overrides if not text.startswith(_SHOWN_APART)]
        rows.append((phase.name, steps, quantity(phase.tokens), size, mixture, ends, ", ".join(others)))
    return rows


def baselines(data: TrainingData) -> Baselines:
    """Entropy and compressors on the held-out text; over several sources their means by bytes; none of answers."""
    parts = [m["splits"]["held_out"] for m in data.manifests.values()]
    if any(ASSISTANT in part for part in parts):
        return NO_BASELINES
    total = sum(part["bytes"] for part in parts)

    def mean(key: str) -> float:
        return sum(part[key] * part["bytes"] for part in parts) / total

    return Baselines(mean("byte_entropy_bits"), mean("gzip_bits_per_byte"), mean("xz_bits_per_byte"))


def write_results(run: Run, data: TrainingData, status: str, command: str | None) -> None:
    """Redraws the plots and rewrites ``report.md``.

    Args:
        run: the run.
        data: what it trains on.
        status: how it stands, in words.
        command: the command line that goes on with it, or None.
    """
    facts = {"held_out": _held_out(data), "sources": _sources(data, run.done), "best_step": run.best}
    facts |= {"newton_schulz_share": newton_schulz_share(run.config)}
    facts |= {"phases": [PHASE_HEADER, *rows] if (rows := phase_rows(run.config)) else ()}
    write_run(run, status, command, baselines=baselines(data), **facts)


def write_run(
    run: Run,
    status: str,
    command: str | None,
    shown: Mapping[str, object] | None = None,
    baselines: Baselines = NO_BASELINES,
    **facts: Any,
) -> None:
    """Redraws the plots, and rewrites ``report.md`` with what all stages say of a run.

    Args:
        run: the run.
        status: how it stands, in words.
        command: the command line that goes on with it, or None.
        shown: what the report shows of the configuration beside ``highlights``, by a short name.
        baselines: on the held-out text.
        facts: further fields of the ``RunSummary``.
    """
    config = run.config
    tau = config.optimizer.qk_clip_tau if config.optimizer.name == "muonclip" else None
    draw_plots(run.workdir, baselines=baselines, qk_clip_tau=tau)
    summary = RunSummary(
        title=f"{config.stage} {run.workdir.name}",
        stage=config.stage,
        status=status,
        command=command,
        config=highlights(config) | dict(shown or {}),
        changes=[(f"{step:,}", key, str(before), str(now)) for step, key, before, now in run.changes],
        versions={name: version(name) for name in PACKAGES},
        device=device_name(),
        peak_flops=run.recorder.peak_flops,
        peak_is_measured=jax.devices()[0].device_kind not in PEAK_FLOPS,
        parameters_total=total_parameters(config.model),
        parameters_active=active_parameters(config.model),
        total_steps=config.train.steps,
        baselines=baselines,
        qk_clip_tau=tau,
        **facts,
    )
    write_report(run.workdir, summary)


def _held_out(data: TrainingData) -> str:
    """The held-out data in words."""
    parts = [m["splits"]["held_out"] for m in data.manifests.values()]
    if any(ASSISTANT in part for part in parts):
        written = sum(part.get(ASSISTANT, 0) for part in parts)  # sources of text beside conversations have none
        kind = "conversations" if all(ASSISTANT in part for part in parts) else "documents and conversations"
        return f"{data.held_out.documents:,} {kind} with {quantity(written)} tokens of the assistant"
    return f"{data.held_out.documents:,} documents, {data.held_out.bytes / 1e3:,.0f} kB"


def _sources(data: TrainingData, step: int) -> list[DataSource]:
    epochs = data.loader.epochs(step)
    return [
        DataSource(name, manifest["splits"]["train"]["tokens"], epochs[name], manifest["skipped"]["count"])
        for name, manifest in data.manifests.items()
    ]


def highlights(config: Config) -> dict[str, object]:
    """What a report shows of a configuration, by a short name of each key."""
    model, optimizer, train = config.model, config.optimizer, config.train
    return {
        "layers": f"{model.layers} ({model.dense_layers} dense)",
        "d_model": model.d_model,
        "heads": model.heads,
        "attention": model.attention,
        "experts": f"{model.moe.experts} routed, {model.moe.active_experts} active, {model.moe.shared_experts} shared"
        if model.dense_layers < model.layers
        else "none",
        "optimizer": optimizer.name,
        "learning_rate": optimizer.learning_rate,
        **({} if config.phases else _schedule_and_batch(config)),
        "seed": train.seed,
    }


def _schedule_and_batch(config: Config) -> dict[str, object]:
    """What is one for a run without phases; the others have a table of their own."""
    train = config.train
    return {
        "schedule": config.optimizer.schedule.kind,
        "batch": f"{train.batch_size} x {config.data.sequence_length} tokens, {train.micro_batches} micro-batches",
    }
