"""Losses over log-probabilities, one file per algorithm; they know no mesh, no model and no executor."""

from k2jax.losses.base import Loss, Metrics
from k2jax.losses.nll import NLL
from k2jax.losses.rows import Rows
from k2jax.losses.targets import PolicyTargets, empty_targets

__all__ = ["NLL", "Loss", "Metrics", "PolicyTargets", "Rows", "empty_targets"]
