"""On-policy distillation as a loss beside a policy loss: the student's own tokens, judged by a teacher."""

from __future__ import annotations

from jax import Array
import jax.numpy as jnp

from k2jax.batch import TokenScores
from k2jax.losses.base import Loss, Metrics
from k2jax.losses.policy import held_ratio
from k2jax.losses.rows import Rows
from k2jax.losses.targets import PolicyTargets, token_temperature


class Distillation(Loss):
    """Minus ``coefficient`` times the mean over sampled tokens of ``ratio distill``, as the term ``distill``.

    ``targets.distill`` is log pi_teacher - log pi without a gradient, so that on policy the gradient is that of the
    reverse Kullback-Leibler divergence of student and teacher; the ratio pi / pi_old corrects for a policy that has
    moved since it sampled. Where teacher and student agree the gradient is exactly 0. The denominator is the weight of
    all sampled tokens, whatever the policy loss divides by.

    Source: KAT-Coder-V2, section 3.4, which adds such a loss to that of the rewards.
    """

    def __init__(self, coefficient: float):
        """The term is scaled by ``coefficient``."""
        self._coefficient = coefficient

    def denominators(self, targets: PolicyTargets) -> dict[str, Array]:
        """The weight of the sampled tokens."""
        return {"distill": targets.weight.sum()}

    def __call__(
        self, scores: TokenScores, targets: PolicyTargets, rows: Rows
    ) -> dict[str, tuple[Array | None, Metrics]]:
        """The scaled sum of minus the weighted gains."""
        ratio_BS = held_ratio(jnp.where(targets.mask > 0, scores.logprob - targets.old_logprob, 0.0))
        return {"distill": (-self._coefficient * rows.sum(targets.weight * ratio_BS * targets.distill), {})}

    def temperature(self, targets: PolicyTargets) -> Array:
        """The temperature at which each token was sampled."""
        return token_temperature(targets)
