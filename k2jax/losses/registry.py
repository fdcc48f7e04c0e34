"""Policy losses by the name that the configuration gives them."""

from __future__ import annotations

from collections.abc import Callable

from k2jax.config.schema import PolicyLossConfig
from k2jax.losses.base import Loss
from k2jax.losses.combined import CombinedLoss
from k2jax.losses.distill import Distillation
from k2jax.losses.gspo import GSPO
from k2jax.losses.icepop import IcePop
from k2jax.losses.k2 import K2Loss
from k2jax.losses.k25 import K25Loss
from k2jax.losses.policy import PolicyLoss
from k2jax.losses.ptx import PTX
from k2jax.losses.reinforce import Reinforce

_MAKERS: dict[str, Callable[..., PolicyLoss]] = {
    "k2": lambda loss, **options: K2Loss(loss.tau, length_normalized=loss.length_normalized, **options),
    "k2.5": lambda loss, **options: K25Loss(loss.ratio_low, loss.ratio_high, loss.tau, **options),
    "gspo": lambda loss, **options: GSPO(
        loss.ratio_low, loss.ratio_high, aggregation=loss.aggregation, level=loss.level, **options
    ),
    "reinforce": lambda loss, **options: Reinforce(**options),
}


def make_policy_loss(config: PolicyLossConfig, *, entropy: bool = False, distill: float = 0.0) -> Loss:
    """The loss of ``config.rl.loss`` over ``PolicyTargets``, beside it PTX and distillation with their coefficients.

    Args:
        config: name and settings of the loss. ``old`` and ``mcla.passes`` decide what ``rl.old_logprobs`` writes into
            the targets, and nothing here.
        entropy: whether the mean entropy over sampled tokens is computed and reported.
        distill: coefficient of distillation as a term of its own; 0 is no such term.
    """
    policy = make_policy_term(config, entropy=entropy)
    beside = [PTX(config.ptx)] * bool(config.ptx) + [Distillation(distill)] * bool(distill)
    return CombinedLoss(policy, *beside) if beside else policy


def make_policy_term(config: PolicyLossConfig, *, entropy: bool = False) -> PolicyLoss:
    """The policy loss of ``config.rl.loss`` by itself."""
    band = config.icepop
    icepop = IcePop(band.low, band.high, band.denominator) if band.on else None
    return _MAKERS[config.name](config, entropy=entropy, icepop=icepop, averaged=config.mcla.current)
