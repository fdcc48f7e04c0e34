"""GSPO (arXiv:2507.18071, equations 5 and 7), and its form over turns (KAT-Coder-V2, equations 6 and 7)."""

from __future__ import annotations

from typing import Any, Literal

from jax import Array
import jax.numpy as jnp

from k2jax.losses.base import Metrics
from k2jax.losses.policy import Gain, PolicyLoss, held_ratio
from k2jax.losses.rows import Rows
from k2jax.losses.targets import PolicyTargets, response_sums, turn_sums

LENGTHS = (64, 512)  # of turns, between which clipping is reported apart [tokens]


class GSPO(PolicyLoss):
    """Minus the mean of ``min(r A, clip(r, low, high) A)``; r is the geometric mean of a unit's ratios of tokens.

    A unit is a response, or in KAT-Coder-V2's form a turn. A response counts once (``sequence``), or by its sampled
    tokens (``token``). The epsilons of the reports are ``1 - low`` and ``high - 1``. The text
    of KAT-Coder-V2 that was at hand lacks the formulas of turns; these are a reconstruction.
    """

    def __init__(
        self,
        low: float,
        high: float,
        *,
        aggregation: Literal["token", "sequence"] = "sequence",
        level: Literal["turn", "sequence"] = "sequence",
        **options: Any,
    ):
        """The bounds of the ratio, what the mean is over, and what has a ratio; options as of PolicyLoss."""
        super().__init__(**options)
        self._low, self._high, self._aggregation, self.level = low, high, aggregation, level

    def log_ratios(self, log_ratio_BS: Array, targets: PolicyTargets, rows: Rows) -> Array:
        """Means over the sampled tokens of turns ``[B, N]`` or responses ``[B, R]``."""
        if self.level == "sequence":
            return response_sums(log_ratio_BS, targets, rows) / jnp.maximum(targets.response_tokens, 1.0)
        return turn_sums(log_ratio_BS, targets, rows) / jnp.maximum(targets.turn_tokens, 1.0)

    def advantages(self, targets: PolicyTargets) -> Array:
        """Of turns or responses ``[B, U]``."""
        return targets.response_advantage if self.level == "sequence" else targets.turn_advantage

    def gain(self, log_ratio: Array, advantage: Array) -> Gain:
        """The bounded product."""
        return Gain(*bounded_product(log_ratio, advantage, self._low, self._high))

    def weights(self, targets: PolicyTargets) -> Array:
        """Of the units: their sampled tokens, or their share of the response."""
        tokens = self._aggregation == "token"
        if self.level == "sequence":
            return targets.response_tokens if tokens else targets.response_weight
        return targets.turn_tokens if tokens else targets.turn_weight

    def report(self, gain: Gain, targets: PolicyTargets) -> Metrics:
        """The share that is clipped, and of turns by length the share of turns and of clipped turns, over all turns."""
        if self.level != "turn":
            return super().report(gain, targets)
        report, shortest = super().report(gain, targets), 0
        for longest in (*LENGTHS, None):
            name = f"beyond_{shortest}" if longest is None else f"to_{longest}"
            inside = (targets.turn_tokens > shortest) & (targets.turn_tokens <= (longest or jnp.inf))
            report |= {f"turns_{name}": inside, f"clipped_{name}": inside & gain.clipped}
            shortest = longest
        return report


def bounded_product(log_ratio: Array, advantage: Array, low: float, high: float) -> tuple[Array, Array]:
    """The ratio times the advantage, bounded on the side on which the objective would go on rising; and where it is."""
    ratio = held_ratio(log_ratio)
    too_high, too_low = (advantage > 0) & (ratio > high), (advantage < 0) & (ratio < low)
    bounded = jnp.where(too_high, high, jnp.where(too_low, low, ratio))
    return bounded * advantage, too_high | too_low
