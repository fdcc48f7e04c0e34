"""Policy losses by the name that the configuration gives them."""

from __future__ import annotations

from k2jax.config.schema import PolicyLossConfig
from k2jax.losses.base import Loss
from k2jax.losses.combined import CombinedLoss
from k2jax.losses.gspo import GSPO
from k2jax.losses.icepop import IcePop
from k2jax.losses.k2 import K2Loss
from k2jax.losses.k25 import K25Loss
from k2jax.losses.policy import PolicyLoss
from k2jax.losses.ppo import PPO
from k2jax.losses.ptx import PTX
from k2jax.losses.reinforce import Reinforce


def make_policy_loss(config: PolicyLossConfig, *, entropy: bool = False) -> Loss:
    """The loss of ``config.rl.loss`` over ``PolicyTargets``, and beside it PTX with its coefficient.

    Args:
        config: name and settings of the loss. ``old`` and ``mcla.passes`` decide what ``rl.old_logprobs`` writes into
            the targets, and nothing here.
        entropy: whether the mean entropy over sampled tokens is computed and reported.
    """
    policy = make_policy_term(config, entropy=entropy)
    return CombinedLoss(policy, PTX(config.ptx)) if config.ptx else policy


def make_policy_term(config: PolicyLossConfig, *, entropy: bool = False) -> PolicyLoss:
    """The policy loss of ``config.rl.loss`` by itself."""
    band = config.icepop
    options = {"entropy": entropy, "icepop": IcePop(band.low, band.high) if band.on else None}
    match config.name:
        case "k2":
            return K2Loss(config.tau, **options)
        case "k2.5":
            return K25Loss(*config.band, config.tau, **options)
        case "kat" | "gspo":
            return GSPO(*config.band, aggregation=config.aggregation, level=config.level, **options)
        case "ppo":
            return PPO(*config.band, **options)
        case "reinforce":
            return Reinforce(**options)
    raise ValueError(f"no policy loss is called {config.name!r}")
