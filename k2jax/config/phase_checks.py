"""Rules about the phases of a run: their order, their rates, and the configuration of each."""

from __future__ import annotations

from k2jax.config.checks import check_combinations
from k2jax.config.fields import check_fields
from k2jax.config.phases import RunPhase, run_phases
from k2jax.config.schema import IMAGE_SOURCES, Config, ScheduleConfig
from k2jax.errors import UserError


def check_phases(config: Config) -> None:
    """Rejects phases that cannot be run; a run without phases has nothing to check.

    Raises:
        UserError: in one line that names the keys.
    """
    if not config.phases:
        return
    if config.stage != "pretrain":
        raise UserError(f"config.phases is for stage pretrain, and config.stage is {config.stage!r}")
    _check_begins(config)
    _check_rates(config)
    if len(config.data.images.share) > 1:
        raise UserError(
            "config.data.images.share has phases of its own, and config.phases too; set one share, and override it "
            "with data.images.share=SHARE in a phase"
        )
    for phase in run_phases(config):
        _check_phase(phase)


def _check_begins(config: Config) -> None:
    begins = {name: phase.begin for name, phase in config.phases.items()}
    if len(set(begins.values())) < len(begins) or min(begins.values()):
        listed = ", ".join(f"{name} at {begin}" for name, begin in sorted(begins.items(), key=lambda item: item[1]))
        raise UserError(f"config.phases must begin at different steps, the first at 0, not {listed}; set their begin")


def _check_rates(config: Config) -> None:
    """Either all phases say their rate, or the schedule spans the run."""
    for name, phase in config.phases.items():
        if (phase.rate in ("linear", "cosine")) != (phase.rate_to is not None):
            raise UserError(
                f"config.phases.{name}.rate {phase.rate} and rate_to {phase.rate_to} do not go together: linear and "
                "cosine have a rate_to, constant and schedule none"
            )
    own = [name for name, phase in config.phases.items() if phase.rate != "schedule"]
    rest = [name for name in config.phases if name not in own]
    if own and rest:
        raise UserError(
            f"config.phases.{own[0]}.rate is {config.phases[own[0]].rate}, and config.phases.{rest[0]}.rate is "
            "schedule: give all phases a rate, or none"
        )
    schedule = config.optimizer.schedule
    if own and schedule != ScheduleConfig(warmup_steps=schedule.warmup_steps):
        raise UserError(
            "config.optimizer.schedule has keys beside warmup_steps, which nothing reads where phases have a rate; "
            "leave them out"
        )


def _check_phase(phase: RunPhase) -> None:
    try:
        check_fields(phase.config)
        check_combinations(phase.config)
    except UserError as error:
        raise UserError(f"in phase {phase.name}: {error}") from None
    sources, images = phase.config.data.sources, phase.config.data.images
    if len(images.share) > 1:
        raise UserError(f"in phase {phase.name}: config.data.images.share {images.share} must be one share")
    limited = [name for name, source in sources.items() if source.max_epochs]
    if limited and any(source.kind in IMAGE_SOURCES for source in sources.values()):
        raise UserError(
            f"config.data.sources.{limited[0]}.max_epochs is not read in phases with images; set it to 0, or leave "
            "config.phases out"
        )
