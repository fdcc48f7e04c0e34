"""Policy losses by the name that the configuration gives them."""

from __future__ import annotations

from collections.abc import Callable

from k2jax.config.schema import PolicyLossConfig
from k2jax.losses.base import Loss
from k2jax.losses.combined import CombinedLoss
from k2jax.losses.distill import Distillation
from k2jax.losses.gspo import GSPO
from k2jax.losses.k2 import K2Loss
from k2jax.losses.k25 import K25Loss
from k2jax.losses.policy import PolicyLoss
from k2jax.losses.ptx import PTX
from k2jax.losses.reinforce import Reinforce

_MAKERS: dict[str, Callable[[PolicyLossConfig, bool], PolicyLoss]] = {
    "k2": lambda loss, entropy: K2Loss(loss.tau, length_normalized=loss.length_normalized, entropy=entropy),
    "k2.5": lambda loss, entropy: K25Loss(loss.ratio_low, loss.ratio_high, loss.tau, entropy=entropy),
    "gspo": lambda loss, entropy: GSPO(loss.ratio_low, loss.ratio_high, aggregation=loss.aggregation, entropy=entropy),
    "reinforce": lambda loss, entropy: Reinforce(entropy=entropy),
}


def make_policy_loss(config: PolicyLossConfig, *, entropy: bool = False, distill: float = 0.0) -> Loss:
    """The loss of ``config.rl.loss`` over ``PolicyTargets``, beside it PTX and distillation with their coefficients.

    Args:
        config: name and settings of the loss. ``old`` is the packer's affair: it decides ``old_logprob``.
        entropy: whether the mean entropy over sampled tokens is computed and reported.
        distill: coefficient of distillation as a term of its own; 0 is no such term.
    """
    policy = _MAKERS[config.name](config, entropy)
    beside = [PTX(config.ptx)] * bool(config.ptx) + [Distillation(distill)] * bool(distill)
    return CombinedLoss(policy, *beside) if beside else policy
