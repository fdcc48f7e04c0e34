"""What is said of a step that met a value that is not finite: what happened, what was saved, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from k2jax.train.record import infinite_logits
from k2jax.train.step import StepMetrics


def unhealthy_note(
    step: int,
    metrics: StepMetrics,
    leaves: list[str],
    *,
    updates: int,
    good: int,
    start: int,
    steps: Sequence[int],
    folder: Path,
) -> str:
    """The line about a step that was not applied.

    Args:
        step: its number.
        metrics: of its update.
        leaves: names of weights and moments that were not finite when it began.
        updates: that the step had done before.
        good: the last step that was done.
        start: the step from which the run was started.
        steps: of the checkpoints that were there.
        folder: of the checkpoint of ``good``.
    """
    where = infinite_logits(metrics.stats.max_logit)
    happened = (
        f"stopped: step {step:,} is not finite (loss {float(metrics.loss)}, gradient norm {float(metrics.grad_norm)}"
        + (f", max logit in {where}" if where else "")
        + ")"
    )
    lower = "lower config.optimizer.learning_rate or config.optimizer.grad_clip"
    again = f"run again to go on from step {steps[-1]:,}" if steps else "run again from the start"
    if leaves:
        return f"{happened} because {some_of(leaves)} was not when it began; nothing was saved: {again}."
    if updates:  # the state lies between two steps
        return f"{happened}, and was left after {updates} of its updates: {lower}, and {again}."
    if good == start and steps:
        older = [each for each in steps if each < good]
        back = f"go on from step {older[-1]:,}" if older else "start anew"
        return (
            f"{happened}, the first one after checkpoint {folder}: {lower}, and if that does not help, move the "
            f"checkpoint away to {back}."
        )
    return (
        f"{happened}; the last good step is {good:,} and no weight of step {step:,} was written. {lower.capitalize()} "
        "and run again."
    )


def some_of(leaves: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    return ", ".join(leaves[:3]) + (f" and {len(leaves) - 3} more" if len(leaves) > 3 else "")
