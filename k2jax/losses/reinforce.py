"""REINFORCE: the policy gradient without a ratio and without a trust region."""

from __future__ import annotations

from jax import Array

from k2jax.losses.policy import Gain, PolicyLoss


class Reinforce(PolicyLoss):
    """Minus the mean over sampled tokens of ``advantage log pi``, less its value under the old policy.

    What is subtracted has no gradient and makes the value 0 on policy. Nothing corrects for a policy that has moved
    since the tokens were sampled: it suits one update an iteration.
    """

    def gain(self, log_ratio: Array, advantage: Array) -> Gain:
        """The advantage times the log-ratio."""
        return Gain(advantage * log_ratio)
