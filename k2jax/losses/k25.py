"""The token-clipped policy objective of Kimi K2.5 (arXiv:2602.02276, equation 1)."""

from __future__ import annotations

import math
from typing import Any

from jax import Array
import jax.numpy as jnp

from k2jax.losses.policy import Gain, PolicyLoss, held_ratio


class K25Loss(PolicyLoss):
    """Minus the mean over sampled tokens of ``clip(ratio, low, high) advantage - tau log_ratio^2``.

    Inside the band, bounds included, the gradient is ``ratio advantage grad log pi``. Outside, the ratio has no
    gradient whatever the sign of the advantage, unlike in PPO. The pull to the old policy acts on all tokens, clipped
    ones too. The report prints a band of the log-ratio with a positive lower bound, which would exclude tokens that are
    on policy; here ``low < 1 < high`` bound the ratio itself.
    """

    def __init__(self, low: float, high: float, tau: float, **options: Any):
        """A band of ratios and the strength of the pull; options as of PolicyLoss."""
        super().__init__(**options)
        self._low, self._high, self._tau = low, high, tau

    def gain(self, log_ratio: Array, advantage: Array) -> Gain:
        """The clipped ratio times the advantage, less the pull."""
        below, above = log_ratio < math.log(self._low), log_ratio > math.log(self._high)
        ratio = jnp.where(below, self._low, jnp.where(above, self._high, held_ratio(log_ratio)))
        return Gain(ratio * advantage, below | above, -self._tau * log_ratio**2)
