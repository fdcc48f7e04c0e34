"""What all policy losses share: level of the ratio, advantage, trust region and aggregation are four small functions.

An algorithm is a subclass that states the four. The loss is minus the weighted mean of the gain over its units, which
are tokens, turns or responses. Beside it statistics of the ratio over sampled tokens are reported, for every algorithm.
"""

from __future__ import annotations

import abc
from typing import NamedTuple

from jax import Array, lax
import jax.numpy as jnp

from k2jax.batch import TokenScores
from k2jax.config.schema import RatioLevel
from k2jax.losses.base import Loss, Metrics
from k2jax.losses.icepop import IcePop
from k2jax.losses.quantiles import sums_above
from k2jax.losses.rows import Rows
from k2jax.losses.targets import PolicyTargets, token_temperature

LARGEST_LOG_RATIO = 20.0  # beyond it a ratio is held: exp of more than 88 is infinite in float32


class Gain(NamedTuple):
    """What is maximised, by unit.

    Attributes:
        policy: ``[B, U]``, the policy-gradient term of every token, turn or response.
        clipped: bool ``[B, U]``, where the trust region stops the gradient of the ratio; None without such a region.
        pull: ``[B, U]``, what keeps the policy near the old one, where that is a term of its own.
    """

    policy: Array
    clipped: Array | None = None
    pull: Array | float = 0.0

    @property
    def value(self) -> Array:
        """Both terms ``[B, U]``."""
        return self.policy + self.pull


class PolicyLoss(Loss):
    """Minus the mean gain of sampled tokens, turns or responses, as the term ``policy``; by default of tokens.

    Metrics of the term ``tokens``, means over sampled tokens [nats]: ``mismatch``, abs(log pi - log mu), which before
    the first update of an iteration is that of engine and trainer, its maximum ``mismatch_max``, and ``mismatch_above``
    for its percentiles, see ``losses.quantiles``; ``drift``, abs(log pi - log pi_old); ``kl``, the estimate
    ratio - 1 - log ratio of KL(pi_old, pi), without bias; ``entropy`` where it is asked for; ``zeroed``, the share of
    tokens outside IcePop's band.

    With IcePop the policy-gradient term of a token is multiplied by its factor. Where the ratio is that of a turn or a
    response, the token's share of the gradient is, and the value stays: the trust region sees the same ratio.
    """

    level: RatioLevel = "token"
    """What has a ratio of its own: the unit."""

    def __init__(self, *, entropy: bool = False, icepop: IcePop | None = None):
        """A loss over log-probabilities.

        Args:
            entropy: whether the scores hold entropies, which are then reported.
            icepop: weighs tokens by how far the trainer is from the engine.
        """
        self.entropy, self._icepop = entropy, icepop

    def log_ratios(self, log_ratio_BS: Array, targets: PolicyTargets, rows: Rows) -> Array:
        """The level: log-ratios ``[B, U]`` of the units from those of tokens, which are 0 outside sampled tokens."""
        return log_ratio_BS

    def advantages(self, targets: PolicyTargets) -> Array:
        """The advantage ``[B, U]`` of every unit."""
        return targets.advantage

    @abc.abstractmethod
    def gain(self, log_ratio: Array, advantage: Array) -> Gain:
        """The trust region: what a unit contributes, from its log-ratio and its advantage, ``[B, U]`` each."""

    def weights(self, targets: PolicyTargets) -> Array:
        """The aggregation: the weight ``[B, U]`` of every unit; the denominator is their sum over the batch."""
        return targets.weight

    def report(self, gain: Gain, targets: PolicyTargets) -> Metrics:
        """What is reported of the units beside the term, ``[B, U]`` each: the share that is clipped."""
        return {} if gain.clipped is None else {"clipped": gain.clipped}

    def denominators(self, targets: PolicyTargets) -> dict[str, Array]:
        """The weight of the batch's units, and its sampled tokens."""
        return {"policy": self.weights(targets).sum(), "tokens": targets.mask.sum()}

    def __call__(
        self, scores: TokenScores, targets: PolicyTargets, rows: Rows
    ) -> dict[str, tuple[Array | None, Metrics]]:
        """The sum of minus the weighted gains, and the metrics."""
        log_ratio_BS = _where_sampled(targets, scores.logprob - targets.old_logprob)
        gain = self._weighed_gain(log_ratio_BS, targets, rows)
        weight = self.weights(targets)
        units = {name: rows.sum(weight * value) for name, value in self.report(gain, targets).items()}
        statistics = _of_tokens(log_ratio_BS, scores, targets)
        if self._icepop:
            statistics["zeroed"] = ~self._icepop.kept(targets)
        tokens = {name: rows.sum(targets.mask * value) for name, value in statistics.items()}
        tokens["mismatch_max"] = rows.max(statistics["mismatch"])
        tokens["mismatch_above"] = sums_above(rows, statistics["mismatch"], targets.mask)
        return {"policy": (-rows.sum(weight * gain.value), units), "tokens": (None, tokens)}

    def clipping(self, scores: TokenScores, targets: PolicyTargets, rows: Rows) -> tuple[Array, Array | None]:
        """The ratio of every unit, and where the trust region stops its gradient; ``[B, U]`` each.

        The arguments are those of the loss, which computes the same.
        """
        log_ratio_BS = _where_sampled(targets, scores.logprob - targets.old_logprob)
        log_ratio = self.log_ratios(log_ratio_BS, targets, rows)
        return held_ratio(log_ratio), self.gain(log_ratio, self.advantages(targets)).clipped

    def _weighed_gain(self, log_ratio_BS: Array, targets: PolicyTargets, rows: Rows) -> Gain:
        """The gain of every unit, in which IcePop's factors weigh the tokens' policy gradients."""
        if self._icepop and self.level != "token":
            held_BS = lax.stop_gradient(log_ratio_BS)
            log_ratio_BS = held_BS + self._icepop.factor(targets) * (log_ratio_BS - held_BS)
        gain = self.gain(self.log_ratios(log_ratio_BS, targets, rows), self.advantages(targets))
        if self._icepop and self.level == "token":
            gain = gain._replace(policy=self._icepop.factor(targets) * gain.policy)
        return gain

    def temperature(self, targets: PolicyTargets) -> Array:
        """The temperature at which each token was sampled."""
        return token_temperature(targets)


def held_ratio(log_ratio: Array) -> Array:
    """The ratio, held (without a gradient) where its logarithm leaves -20 .. 20, so that it is always finite."""
    return jnp.exp(jnp.clip(log_ratio, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))


def _where_sampled(targets: PolicyTargets, values_BS: Array) -> Array:
    return jnp.where(targets.mask > 0, values_BS, 0.0)


def _of_tokens(log_ratio_BS: Array, scores: TokenScores, targets: PolicyTargets) -> dict[str, Array]:
    """Statistics ``[B, S]`` by name; of the mismatch 0 outside sampled tokens."""
    held_BS = jnp.clip(log_ratio_BS, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return {
        "mismatch": jnp.abs(_where_sampled(targets, scores.logprob - targets.behavior_logprob)),
        "drift": jnp.abs(log_ratio_BS),
        "kl": jnp.expm1(held_BS) - held_BS,
        **({} if scores.entropy is None else {"entropy": scores.entropy}),
    }
