"""Samples that the infrastructure failed: why, and when a run has to stop because nothing else is left of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from k2jax.errors import UserError
from k2jax.rl.groups import PromptGroup
from k2jax.trajectory import Trajectory

WORTH_A_LINE = 0.1
"""Share of masked samples from which on an iteration says why."""
PATIENCE = 3
"""Iterations in a row without a sample that counts after which a run stops."""
_SHOWN = 200  # characters of a reason


class FailureGuard:
    """Watches for iterations of which little or nothing is left.

    Samples that a failure of machines has masked enter no gradient. A run in which all of them are masked, iteration
    after iteration, learns nothing while its metrics look calm: it is stopped.

    Args:
        note: prints a line.
    """

    def __init__(self, note: Callable[[str], None]):
        self._note, self._in_a_row = note, 0

    def check(self, step: int, groups: Sequence[PromptGroup]) -> None:
        """Looks at the groups that an iteration has completed; one that completed none says nothing.

        Raises:
            UserError: the last ``PATIENCE`` iterations have no sample that counts.
        """
        samples = [trajectory for group in groups for trajectory in group.trajectories]
        masked = [trajectory for trajectory in samples if trajectory.status == "masked"]
        if not samples:
            return
        self._in_a_row = self._in_a_row + 1 if len(masked) == len(samples) else 0
        if len(masked) >= WORTH_A_LINE * len(samples):
            self._note(f"step {step:,}: {masked_words(samples)}")
        if self._in_a_row == PATIENCE:
            raise UserError(
                f"no sample of the last {PATIENCE} iterations counts; {masked_words(samples)}; fix this and start the "
                "run again, which continues from its newest checkpoint"
            )


def masked_words(samples: Iterable[Trajectory]) -> str:
    """How many of some samples are masked and the most frequent reason, in a line; empty where none is."""
    samples = list(samples)
    reasons = Counter(" ".join(each.error.split()) for each in samples if each.status == "masked")
    if not reasons:
        return ""
    (reason, count), total = reasons.most_common(1)[0], sum(reasons.values())
    return f"{total:,} of {len(samples):,} samples were masked, {count:,} of them by {reason[:_SHOWN] or 'no reason'}"
