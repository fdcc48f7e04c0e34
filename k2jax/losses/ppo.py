"""The clipped objective of PPO (arXiv:1707.06347, equation 7), without a value function."""

from __future__ import annotations

from typing import Any

from jax import Array
import jax.numpy as jnp

from k2jax.losses.gspo import bounded_product
from k2jax.losses.policy import Gain, PolicyLoss
from k2jax.losses.targets import PolicyTargets


class PPO(PolicyLoss):
    """Minus the mean over sampled tokens of ``min(ratio A, clip(ratio, low, high) A)``."""

    def __init__(self, low: float, high: float, **options: Any):
        """The bounds of the ratio; options as of PolicyLoss."""
        super().__init__(**options)
        self._low, self._high = low, high

    def advantages(self, targets: PolicyTargets) -> Array:
        """Of tokens ``[2, B, S]`` the positive and the negative part of the mean over their responses."""
        positive_BS = targets.positive_advantage
        return jnp.stack([positive_BS, targets.advantage - positive_BS])

    def gain(self, log_ratio: Array, advantage: Array) -> Gain:
        """The bounded product of each part, which are added; a token is clipped where one of its parts is.

        Responses that share a token may have advantages of both signs, and each sign has a bound of its own.
        """
        product, clipped = bounded_product(log_ratio, advantage, self._low, self._high)
        return Gain(product.sum(0), clipped.any(0))
