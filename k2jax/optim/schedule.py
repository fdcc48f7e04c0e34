"""Learning rate over steps: warm-up, constant, decay to a floor, annealing; one pure function of the step."""

from __future__ import annotations

import dataclasses

import optax

from k2jax.config.schema import ScheduleConfig
from k2jax.errors import UserError

WSD_DECAY = 0.4  # share of the steps that decay when decay_steps is 0
WARMUP_STEPS, WARMUP = 50, 0.1  # when warmup_steps is None: steps, and at most this share of the run


def build_schedule(config: ScheduleConfig, peak: float, steps: int) -> optax.Schedule:
    """The learning rate as a function of the 0-based step.

    ``wsd``: linear warm-up from 0, constant, decay to ``floor * peak``, linear annealing to ``anneal_to * peak``; the
    segments end exactly at ``steps``. ``cosine`` is the same without a constant part and with a cosine decay; if
    ``decay_steps`` ends early the rate stays at the floor. ``constant`` has a warm-up only. Kimi K2 (section 2.5) is
    ``wsd`` with a warm-up of 500 steps, a cosine decay over 5.5T tokens, floor 0.1 and annealing to 0.035.

    Args:
        config: lengths in steps, rates as fractions of ``peak``.
        peak: rate of the constant part.
        steps: optimizer steps of the run.

    Raises:
        UserError: an unknown kind or shape, a negative length or rate, or segments that do not fit into ``steps``.
    """
    _check(config, peak, steps)
    if config.warmup_steps is None:
        config = dataclasses.replace(config, warmup_steps=min(WARMUP_STEPS, int(WARMUP * steps)))
    room = steps - config.warmup_steps - config.anneal_steps
    if config.kind == "constant":
        decay = hold_before = 0
    elif config.kind == "cosine":
        decay, hold_before = config.decay_steps or max(room, 0), 0
    else:
        decay = config.decay_steps or round(WSD_DECAY * steps)
        hold_before = room - decay
    if room < decay:
        raise UserError(
            f"the learning-rate schedule does not fit into {steps} steps: warm-up {config.warmup_steps}, "
            f"decay {decay}, annealing {config.anneal_steps}; shorten these (optimizer.schedule) or raise train.steps"
        )
    if config.kind == "constant":
        return _join([(optax.linear_schedule(0.0, peak, config.warmup_steps), config.warmup_steps)], peak)
    floor = config.floor * peak
    segments = [
        (optax.linear_schedule(0.0, peak, config.warmup_steps), config.warmup_steps),
        (optax.constant_schedule(peak), hold_before),
        (_decay(config, peak, decay), decay),
        (optax.constant_schedule(floor), room - hold_before - decay),
        (optax.linear_schedule(floor, config.anneal_to * peak, config.anneal_steps), config.anneal_steps),
    ]
    return _join(segments, config.anneal_to * peak if config.anneal_steps else floor)


def _check(config: ScheduleConfig, peak: float, steps: int) -> None:
    """Refuses values that mean nothing."""
    if config.kind not in ("wsd", "cosine", "constant"):
        raise UserError(f"optimizer.schedule.kind is {config.kind!r}; there are wsd, cosine and constant")
    if config.decay_shape not in ("linear", "cosine"):
        raise UserError(f"optimizer.schedule.decay_shape is {config.decay_shape!r}; there are linear and cosine")
    if steps < 1 or peak < 0:
        raise UserError(f"need train.steps ≥ 1 and optimizer.learning_rate ≥ 0, not {steps} and {peak}")
    for key in ("warmup_steps", "decay_steps", "anneal_steps", "floor", "anneal_to"):
        if (getattr(config, key) or 0) < 0:
            raise UserError(f"optimizer.schedule.{key} is {getattr(config, key)}; it cannot be negative")
    if config.kind == "constant" and (config.decay_steps or config.anneal_steps):
        raise UserError("optimizer.schedule.kind is constant: set decay_steps and anneal_steps to 0, or take wsd")


def _decay(config: ScheduleConfig, peak: float, steps: int) -> optax.Schedule:
    """From the peak to the floor."""
    if config.kind == "cosine" or config.decay_shape == "cosine":
        return optax.cosine_decay_schedule(peak, max(steps, 1), alpha=config.floor)
    return optax.linear_schedule(peak, config.floor * peak, steps)


def _join(segments: list[tuple[optax.Schedule, int]], last: float) -> optax.Schedule:
    """Segments one after the other, empty ones left out, and ``last`` from their end on."""
    present = [(schedule, length) for schedule, length in segments if length]
    boundaries = [sum(length for _, length in present[: i + 1]) for i in range(len(present))]
    return optax.join_schedules([*(schedule for schedule, _ in present), optax.constant_schedule(last)], boundaries)
