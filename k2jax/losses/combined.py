"""A loss made of losses, each with terms and denominators of its own."""

from __future__ import annotations

from typing import Any

from jax import Array

from k2jax.batch import TokenScores
from k2jax.losses.base import Loss, Metrics
from k2jax.losses.rows import Rows


class CombinedLoss(Loss):
    """The sum of losses over the same targets, whose terms must differ in name; the first states the temperature."""

    def __init__(self, *losses: Loss):
        """The losses, at least one."""
        self._losses = losses
        self.entropy = any(loss.entropy for loss in losses)

    def denominators(self, targets: Any) -> dict[str, Array]:
        """The denominators of all terms.

        Raises:
            ValueError: two losses have a term of one name.
        """
        return _union([loss.denominators(targets) for loss in self._losses])

    def __call__(self, scores: TokenScores, targets: Any, rows: Rows) -> dict[str, tuple[Array | None, Metrics]]:
        """The terms of all losses."""
        return _union([loss(scores, targets, rows) for loss in self._losses])

    def temperature(self, targets: Any) -> Array | float:
        """What the first loss says."""
        return self._losses[0].temperature(targets)


def _union(parts: list[dict[str, Any]]) -> dict[str, Any]:
    union: dict[str, Any] = {}
    for part in parts:
        if shared := union.keys() & part.keys():
            raise ValueError(f"two losses have the term {min(shared)!r}")
        union |= part
    return union
