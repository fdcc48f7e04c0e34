"""PTX: cross-entropy on curated text beside a policy loss, so that what is not rewarded is not forgotten."""

from __future__ import annotations

from jax import Array

from k2jax.batch import TokenScores
from k2jax.losses.base import Loss, Metrics
from k2jax.losses.rows import Rows
from k2jax.losses.targets import PolicyTargets, token_temperature


class PTX(Loss):
    """``coefficient`` times the mean negative log-likelihood over the weights ``targets.ptx`` [nats]; metric: ``nll``.

    Its denominator is the weight of its own tokens, so that it neither dilutes a policy loss nor is diluted by it.
    Source: InstructGPT (arXiv:2203.02155, equation 2), used in Kimi K2 (arXiv:2507.20534, section 3.2.3).
    """

    def __init__(self, coefficient: float):
        """The term is scaled by ``coefficient``."""
        self._coefficient = coefficient

    def denominators(self, targets: PolicyTargets) -> dict[str, Array]:
        """The weight of the curated tokens."""
        return {"ptx": targets.ptx.sum()}

    def __call__(
        self, scores: TokenScores, targets: PolicyTargets, rows: Rows
    ) -> dict[str, tuple[Array | None, Metrics]]:
        """The scaled sum of negative log-likelihoods."""
        nll = -rows.sum(targets.ptx * scores.logprob)
        return {"ptx": (self._coefficient * nll, {"nll": nll})}

    def temperature(self, targets: PolicyTargets) -> Array:
        """1 on curated tokens."""
        return token_temperature(targets)
