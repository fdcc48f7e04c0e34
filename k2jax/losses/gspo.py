"""GSPO (arXiv:2507.18071, equations 5 and 7), and its form over turns (KAT-Coder-V2, equations 6 and 7)."""

from __future__ import annotations

from typing import Any, Literal

from jax import Array
import jax.numpy as jnp

from k2jax.losses.base import Metrics
from k2jax.losses.policy import Gain, PolicyLoss, held_ratio
from k2jax.losses.rows import Rows
from k2jax.losses.targets import PolicyTargets, turn_sums

LENGTHS = (64, 512)  # of turns, between which clipping is reported apart [tokens]


class GSPO(PolicyLoss):
    """Minus the mean of ``min(r A, clip(r, low, high) A)``; r is the geometric mean of a turn's ratios of tokens.

    A response of one turn is a sequence of GSPO; of several turns, each has a ratio of its own and the response counts
    once (``sequence``), or every turn counts by its sampled tokens (``token``). The report's epsilons are ``1 - low``
    and ``high - 1``. The text of KAT-Coder-V2 that was at hand lacks the formulas of turns; these are a reconstruction.
    """

    units_are_tokens = False

    def __init__(
        self, low: float, high: float, *, aggregation: Literal["token", "sequence"] = "sequence", **options: Any
    ):
        """The bounds of the ratio, and what the mean is over; options as of PolicyLoss."""
        super().__init__(**options)
        self._low, self._high, self._aggregation = low, high, aggregation

    def log_ratios(self, log_ratio_BS: Array, targets: PolicyTargets, rows: Rows) -> Array:
        """Means over the sampled tokens of turns ``[B, N]``."""
        return turn_sums(log_ratio_BS, targets, rows) / jnp.maximum(targets.turn_tokens, 1.0)

    def advantages(self, targets: PolicyTargets) -> Array:
        """Of turns ``[B, N]``."""
        return targets.turn_advantage

    def gain(self, log_ratio: Array, advantage: Array) -> Gain:
        """The ratio times the advantage, bounded on the side on which the objective would go on rising."""
        ratio = held_ratio(log_ratio)
        too_high, too_low = (advantage > 0) & (ratio > self._high), (advantage < 0) & (ratio < self._low)
        bounded = jnp.where(too_high, self._high, jnp.where(too_low, self._low, ratio))
        return Gain(bounded * advantage, too_high | too_low)

    def weights(self, targets: PolicyTargets) -> Array:
        """Of turns ``[B, N]``: their sampled tokens, or their share of the response."""
        return targets.turn_tokens if self._aggregation == "token" else targets.turn_weight

    def report(self, gain: Gain, targets: PolicyTargets) -> Metrics:
        """The share that is clipped, and by length the share of turns and of clipped turns, both over all turns."""
        report, shortest = super().report(gain, targets), 0
        for longest in (*LENGTHS, None):
            name = f"beyond_{shortest}" if longest is None else f"to_{longest}"
            inside = (targets.turn_tokens > shortest) & (targets.turn_tokens <= (longest or jnp.inf))
            report |= {f"turns_{name}": inside, f"clipped_{name}": inside & gain.clipped}
            shortest = longest
        return report
