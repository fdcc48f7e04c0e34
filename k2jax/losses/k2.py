"""The squared objective of Kimi K1.5 (arXiv:2501.12599, section 2.3.2) and K2 (arXiv:2507.20534, section 3.2.3)."""

from __future__ import annotations

from typing import Any

from jax import Array

from k2jax.losses.policy import Gain, PolicyLoss
from k2jax.losses.rows import Rows
from k2jax.losses.targets import PolicyTargets, response_sums


class K2Loss(PolicyLoss):
    """The mean over responses of ``(advantage - tau s)^2 / (2 tau)``, s being the log-ratio of the whole response.

    The reports print 2 tau times that. Divided so, the gradient is K1.5's, ``-(advantage - tau s) grad log pi``, and at
    the old policy it does not depend on tau. Nothing is clipped.
    """

    level = "sequence"

    def __init__(self, tau: float, **options: Any):
        """The strength of the pull; options as of PolicyLoss."""
        super().__init__(**options)
        self._tau = tau

    def log_ratios(self, log_ratio_BS: Array, targets: PolicyTargets, rows: Rows) -> Array:
        """Sums over responses ``[B, R]``."""
        return response_sums(log_ratio_BS, targets, rows)

    def advantages(self, targets: PolicyTargets) -> Array:
        """Of responses ``[B, R]``."""
        return targets.response_advantage

    def gain(self, log_ratio: Array, advantage: Array) -> Gain:
        """Minus the scaled square."""
        return Gain(-((advantage - self._tau * log_ratio) ** 2) / (2 * self._tau))

    def weights(self, targets: PolicyTargets) -> Array:
        """1 for every response ``[B, R]``."""
        return targets.response_weight
