"""Learning-rate schedule: warm-up, constant, decay to a floor and annealing, as a pure function of the step."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import itertools

import optax

from k2jax.config.fields import check_fields
from k2jax.config.schema import PhaseConfig, ScheduleConfig
from k2jax.errors import UserError

WSD_DECAY = 0.4
"""Share of the run that decays if ``decay_steps`` is 0."""
WARMUP_STEPS = 50
"""Steps of the warm-up if ``warmup_steps`` is None."""
WARMUP_SHARE = 0.1
"""Largest share of the run for that warm-up."""


def build_schedule(config: ScheduleConfig, peak: float, steps: int) -> optax.Schedule:
    """Builds the learning rate as a function of the 0-based step.

    ``wsd``: linear warm-up from 0, constant, decay to ``floor * peak``, linear annealing to ``anneal_to * peak``; the
    segments end exactly at ``steps``. ``cosine`` is the same without a constant part and with a cosine decay; if
    ``decay_steps`` ends early the rate stays at the floor. ``constant`` has a warm-up only. Kimi K2 (section 2.5) is
    ``wsd`` with a warm-up of 500 steps, a cosine decay over 5.5T tokens, floor 0.1 and annealing to 0.035.

    Args:
        config: lengths in steps, rates as fractions of ``peak``.
        peak: learning rate of the constant part.
        steps: optimizer steps of the run.

    Raises:
        UserError: if a kind or shape is unknown, a length or rate is negative, or the segments exceed ``steps``.
    """
    _check(config, peak, steps)
    config = dataclasses.replace(config, warmup_steps=_warmup_steps(config, steps))
    available = steps - config.warmup_steps - config.anneal_steps
    if config.kind == "constant":
        decay = hold_before = 0
    elif config.kind == "cosine":
        decay, hold_before = config.decay_steps or max(available, 0), 0
    else:
        decay = config.decay_steps or round(WSD_DECAY * steps)
        hold_before = available - decay
    if available < decay:
        raise UserError(
            f"the learning-rate schedule does not fit into {steps} updates: config.optimizer.schedule has warmup_steps "
            f"{config.warmup_steps}, decay_steps {decay} and anneal_steps {config.anneal_steps}; lower these, or raise "
            "config.train.steps"
        )
    if config.kind == "constant":
        return _join([(optax.linear_schedule(0.0, peak, config.warmup_steps), config.warmup_steps)], peak)
    floor = config.floor * peak
    segments = [
        (optax.linear_schedule(0.0, peak, config.warmup_steps), config.warmup_steps),
        (optax.constant_schedule(peak), hold_before),
        (_decay(config, peak, decay), decay),
        (optax.constant_schedule(floor), available - hold_before - decay),
        (optax.linear_schedule(floor, config.anneal_to * peak, config.anneal_steps), config.anneal_steps),
    ]
    return _join(segments, config.anneal_to * peak if config.anneal_steps else floor)


def build_phase_schedule(
    config: ScheduleConfig, peak: float, steps: int, phases: Sequence[PhaseConfig]
) -> optax.Schedule:
    """Builds the learning rate of a run whose phases say theirs, as a function of the 0-based step.

    Linear warm-up from 0 to ``peak`` in the first phase, whose segment follows it; every further segment goes from the
    rate at the end of the one before.

    Args:
        config: its ``warmup_steps`` alone is read.
        peak: learning rate after the warm-up.
        steps: optimizer steps of the run.
        phases: of the run, by their begin, which have a shape each.

    Raises:
        UserError: if the warm-up is longer than the first phase.
    """
    _check(config, peak, steps)
    warmup = _warmup_steps(config, steps)
    segments = [(optax.linear_schedule(0.0, peak, warmup), warmup)]
    ends = [*(phase.begin for phase in phases[1:]), max(steps, phases[-1].begin)]  # the run may end before
    if warmup > ends[0]:
        raise UserError(
            f"config.optimizer.schedule.warmup_steps {warmup} is longer than the first phase, {ends[0]} steps; lower it"
        )
    rate = peak
    for phase, (begin, end) in zip(phases, itertools.pairwise((warmup, *ends)), strict=True):
        segment, rate = _segment(phase, rate, end - begin)
        segments.append((segment, end - begin))
    return _join(segments, rate)


def _segment(phase: PhaseConfig, before: float, steps: int) -> tuple[optax.Schedule, float]:
    """The rate of a phase, from that before it, and the rate at its end."""
    rate = before if phase.rate_to is None else phase.rate_to
    if phase.rate == "cosine":
        return optax.cosine_decay_schedule(before, max(steps, 1), alpha=rate / before if before else 0.0), rate
    return optax.linear_schedule(before, rate, steps), rate


def _warmup_steps(config: ScheduleConfig, steps: int) -> int:
    return min(WARMUP_STEPS, int(WARMUP_SHARE * steps)) if config.warmup_steps is None else config.warmup_steps


def _check(config: ScheduleConfig, peak: float, steps: int) -> None:
    """Rejects invalid values."""
    check_fields(config, "optimizer.schedule")
    if steps < 1 or peak < 0:
        raise UserError(f"need train.steps ≥ 1 and optimizer.learning_rate ≥ 0, not {steps} and {peak}")
    if config.kind == "constant" and (config.decay_steps or config.anneal_steps):
        raise UserError("optimizer.schedule.kind is constant: set decay_steps and anneal_steps to 0, or kind to wsd")


def _decay(config: ScheduleConfig, peak: float, steps: int) -> optax.Schedule:
    """Decay from the peak to the floor."""
    if config.kind == "cosine" or config.decay_shape == "cosine":
        return optax.cosine_decay_schedule(peak, max(steps, 1), alpha=config.floor)
    return optax.linear_schedule(peak, config.floor * peak, steps)


def _join(segments: list[tuple[optax.Schedule, int]], last: float) -> optax.Schedule:
    """Joins the segments that are not empty, followed by the constant rate ``last``."""
    present = [(schedule, length) for schedule, length in segments if length]
    boundaries = [sum(length for _, length in present[: i + 1]) for i in range(len(present))]
    return optax.join_schedules([*(schedule for schedule, _ in present), optax.constant_schedule(last)], boundaries)
