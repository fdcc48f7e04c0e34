"""Losses over log-probabilities, one file per algorithm; they know no mesh, no model and no executor.

In reading order: ``base`` (what a loss is), ``nll``; ``policy`` (what policy losses share) and ``targets`` (what they
are told), then one file each: ``k2``, ``k25``, ``gspo``, ``ppo``, ``reinforce``; ``icepop``, ``distill``, ``ptx`` and
``siglip``, ``combined`` (several at once), ``registry`` (by name). ``rows`` and ``quantiles`` are sums that are exact
on any mesh.
"""

from k2jax.losses.base import Loss, Metrics
from k2jax.losses.combined import CombinedLoss
from k2jax.losses.nll import NLL
from k2jax.losses.registry import make_policy_loss
from k2jax.losses.rows import Rows
from k2jax.losses.targets import PolicyTargets, empty_targets

__all__ = ["NLL", "CombinedLoss", "Loss", "Metrics", "PolicyTargets", "Rows", "empty_targets", "make_policy_loss"]
