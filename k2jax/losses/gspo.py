"""GSPO (arXiv:2507.18071, equations 5 and 7), and its forms over turns (KAT-Coder-V2, equations 6 and 7) and tokens."""

from __future__ import annotations

from typing import Any, Literal

from jax import Array
import jax.numpy as jnp

from k2jax.config.schema import RatioLevel
from k2jax.losses.base import Metrics
from k2jax.losses.policy import Gain, PolicyLoss, held_ratio
from k2jax.losses.rows import Rows
from k2jax.losses.targets import PolicyTargets, response_sums, turn_sums

LENGTHS = (64, 512)  # of turns, between which clipping is reported apart [tokens]


class GSPO(PolicyLoss):
    """Minus the mean of ``min(r A, clip(r, low, high) A)``; r is the geometric mean of a unit's ratios of tokens.

    By default a turn is a unit: it has a ratio of its own, and the response counts once (``sequence``), or every turn
    counts by its sampled tokens (``token``). A response of one turn is a sequence of GSPO, which the level ``sequence``
    makes of all turns together. The level ``token`` is PPO's objective. The report's epsilons are ``1 - low``
    and ``high - 1``. The text of KAT-Coder-V2 that was at hand lacks the formulas of turns; these are a reconstruction.
    """

    def __init__(
        self,
        low: float,
        high: float,
        *,
        aggregation: Literal["token", "sequence"] = "sequence",
        level: RatioLevel = "turn",
        **options: Any,
    ):
        """The bounds of the ratio, what the mean is over, and what has a ratio; options as of PolicyLoss.

        Raises:
            ValueError: a mean over responses of ratios of tokens, whose share of their response targets do not hold.
        """
        super().__init__(**options)
        if (level, aggregation) == ("token", "sequence"):
            raise ValueError("ratios of tokens are averaged over tokens")
        self._low, self._high, self._aggregation, self.level = low, high, aggregation, level

    def log_ratios(self, log_ratio_BS: Array, targets: PolicyTargets, rows: Rows) -> Array:
        """Means over the sampled tokens of turns ``[B, N]`` or responses ``[B, R]``, or those of tokens."""
        if self.level == "token":
            return log_ratio_BS
        if self.level == "sequence":
            return response_sums(log_ratio_BS, targets, rows) / jnp.maximum(targets.response_tokens, 1.0)
        return turn_sums(log_ratio_BS, targets, rows) / jnp.maximum(targets.turn_tokens, 1.0)

    def advantages(self, targets: PolicyTargets) -> Array:
        """Of turns or responses ``[B, U]``; of tokens ``[2, B, S]`` the positive and the negative part of the mean."""
        if self.level == "token":
            positive_BS = targets.positive_advantage
            return jnp.stack([positive_BS, targets.advantage - positive_BS])
        return targets.response_advantage if self.level == "sequence" else targets.turn_advantage

    def gain(self, log_ratio: Array, advantage: Array) -> Gain:
        """The ratio times the advantage, bounded on the side on which the objective would go on rising.

        Responses that share a token have advantages of both signs: each part of their mean has its own bound, and the
        token is clipped where one of them is.
        """
        ratio = held_ratio(log_ratio)
        too_high, too_low = (advantage > 0) & (ratio > self._high), (advantage < 0) & (ratio < self._low)
        bounded = jnp.where(too_high, self._high, jnp.where(too_low, self._low, ratio))
        product, clipped = bounded * advantage, too_high | too_low
        return Gain(product.sum(0), clipped.any(0)) if self.level == "token" else Gain(product, clipped)

    def weights(self, targets: PolicyTargets) -> Array:
        """Of the units: their sampled tokens, or their share of the response."""
        if self.level == "token":
            return targets.weight
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
